"""What clients say and hear: schemas, routes and the handlers behind them."""
