"""Distributed training: workers send gradients over the network to one server, which stores the parameters."""
