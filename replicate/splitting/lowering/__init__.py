"""Operations of many steps, written as plain ones before a graph is split."""
