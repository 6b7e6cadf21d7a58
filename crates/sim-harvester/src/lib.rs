//! What Harvester does around its API: VMs, announcer, data path, DHCP.
