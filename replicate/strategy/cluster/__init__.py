"""Several processes: who belongs, who answers, what is alike, how sessions begin and end."""
