"""Pure mathematics: numpy and scipy, no randomness, no clock, no disk. Letters follow the papers."""
