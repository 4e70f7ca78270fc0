"""Who carries out an audit: the real trainer is run, and what each observer sees is handed to ``audit``."""
