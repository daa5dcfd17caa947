"""The knobs of compile-tuner. Importable without torch, optuna or tuner."""
