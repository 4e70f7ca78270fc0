"""Reports: pages, tables, figures and simulations that show results to people."""
