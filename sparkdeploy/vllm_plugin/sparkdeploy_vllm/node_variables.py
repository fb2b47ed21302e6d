"""Variables that belong to a node: its interfaces, adapters, addresses, and their indexes.

What another machine's recipe or image says of them is wrong on this one. sparkdeploy sets those of
several nodes from config.yaml; every other one is left to NCCL, gloo, UCX and Ray themselves.
"""

_ENDS = (
    *("_IFNAME", "_IF_NAME", "_IF_INCLUDE", "_IF_EXCLUDE", "_GID_INDEX", "_IB_HCA", "_HCA_LIST"),
    *("_HCA_PE_MAPPING", "_NET_DEVICES", "_NODE_IP_ADDRESS", "_ADDR_RANGE", "_ADDR_FAMILY"),
    *("_ROCE_VERSION_NUM", "MASTER_ADDR", "_HOSTID", "_COMM_ID", "_TOPO_FILE"),
)


def belongs_to_node(name: str) -> bool:
    return name.upper().endswith(_ENDS)
