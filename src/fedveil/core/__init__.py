"""What every room uses: errors, the one way to refuse, values, limits, files, and reading TOML and JSON."""
