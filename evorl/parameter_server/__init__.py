"""Workers whose gradients meet in one server of parameters: its commands over the network, and trainings by them."""
