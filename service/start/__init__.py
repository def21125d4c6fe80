"""How a service starts: on a Ray of its own or on a cluster, with one model or several."""
