"""Prints the network configuration that cloud-init makes of network data on standard input: netplan's, as JSON."""

import json
import sys

try:
    import yaml
    from cloudinit.net import netplan, network_state
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)

state = network_state.parse_net_config_data(yaml.safe_load(sys.stdin.read()))
json.dump(yaml.safe_load(netplan.Renderer()._render_content(state)), sys.stdout)
