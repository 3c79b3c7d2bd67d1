from benchmarking import processes
processes.work()
