"""Why a model predicts what it does: take out or replace a part, and measure its predictions."""
