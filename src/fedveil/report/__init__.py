"""Results made visible: tables, figures and simulations that show a theorem at work."""
