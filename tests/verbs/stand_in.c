/* Stands in for libibverbs.so.1 where no adapter is: real ibv_devinfo and real NCCL load it.
 *
 * STAND_IN_DEVICES names the devices and their addresses: `rocep1s0f1=10.77.0.11,...`. Of each device
 * port 1 is active Ethernet; GIDs 0 and 1 are of its link-local address, 2 and 3 of its IPv4 address,
 * even ones RoCE v1 and odd ones RoCE v2, as on a ConnectX-7 with one address.
 * STAND_IN_FAULT: `denied` (no device can be opened), `down` (ports are down), `v1` (no GID is RoCE
 * v2), `mtu` (1024 bytes), `modify` (no queue pair gets ready to receive).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 4, GIDS = 4 };

/* What the kernel's table says of a GID; the real header is private to rdma-core. */
enum gid_type { ROCE_V1 = 0, ROCE_V2 = 1 };

static struct ibv_device devices[MOST_DEVICES];
static uint32_t addresses[MOST_DEVICES];

static int fails(const char *fault) {
  const char *wanted = getenv("STAND_IN_FAULT");
  return wanted != NULL && strcmp(wanted, fault) == 0;
}

static int number_of(const struct ibv_context *context) { return (int)(context->device - devices); }

struct ibv_device **ibv_get_device_list(int *count) {
  struct ibv_device **list = calloc(MOST_DEVICES + 1, sizeof(*list));
  const char *named = getenv("STAND_IN_DEVICES");
  char *text = strdup(named == NULL ? "" : named), *rest = text, *entry;
  int found = 0;
  while ((entry = strsep(&rest, ",")) != NULL && found < MOST_DEVICES) {
    char *name = strsep(&entry, "=");
    if (entry == NULL || *name == '\0') continue;
    strncpy(devices[found].name, name, IBV_SYSFS_NAME_MAX - 1);
    devices[found].node_type = IBV_NODE_CA;
    devices[found].transport_type = IBV_TRANSPORT_IB;
    inet_pton(AF_INET, entry, &addresses[found]);
    list[found] = &devices[found];
    found++;
  }
  free(text);
  if (count != NULL) *count = found;
  return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }

const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  if (fails("denied")) {
    errno = EACCES;
    return NULL;
  }
  struct ibv_context *context = calloc(1, sizeof(*context));
  context->device = device;
  context->num_comp_vectors = 1;
  return context;
}

int ibv_close_device(struct ibv_context *context) {
  free(context);
  return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  memset(attr, 0, sizeof(*attr));
  strcpy(attr->fw_ver, "28.45.4028");
  attr->node_guid = attr->sys_image_guid = (uint64_t)(number_of(context) + 1) << 32;
  attr->vendor_id = 0x02c9;
  attr->vendor_part_id = 4129;
  attr->phys_port_cnt = 1;
  attr->max_qp = 1024;
  return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat) {
  struct ibv_port_attr *attr = (struct ibv_port_attr *)compat;
  (void)context, (void)port;
  attr->state = fails("down") ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = fails("mtu") ? IBV_MTU_1024 : IBV_MTU_4096;
  attr->gid_tbl_len = GIDS;
  attr->active_width = 2;
  attr->active_speed = 32;
  attr->phys_state = fails("down") ? 3 : 5;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  uint32_t address = addresses[number_of(context)];
  (void)port;
  memset(gid, 0, sizeof(*gid));
  if (index < 2) {
    gid->raw[0] = 0xfe;
    gid->raw[1] = 0x80;
    gid->raw[15] = (uint8_t)(number_of(context) + 1);
  } else if (index < GIDS) {
    gid->raw[10] = gid->raw[11] = 0xff;
    memcpy(gid->raw + 12, &address, sizeof(address));
  }
  return 0;
}

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, enum gid_type *type) {
  (void)context, (void)port;
  *type = index % 2 == 0 || fails("v1") ? ROCE_V1 : ROCE_V2;
  return 0;
}

int ibv_read_sysfs_file(const char *folder, const char *file, char *text, size_t size) {
  (void)folder, (void)file, (void)text, (void)size;
  return -1;
}

/* From here on only what NCCL asks for. */
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *domain = calloc(1, sizeof(*domain));
  domain->context = context;
  return domain;
}

int ibv_dealloc_pd(struct ibv_pd *domain) {
  free(domain);
  return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *address, size_t length, uint64_t iova, unsigned access) {
  struct ibv_mr *region = calloc(1, sizeof(*region));
  (void)iova, (void)access;
  region->pd = domain;
  region->addr = address;
  region->length = length;
  return region;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *address, size_t length, int access) {
  return ibv_reg_mr_iova2(domain, address, length, (uintptr_t)address, (unsigned)access);
}

int ibv_dereg_mr(struct ibv_mr *region) {
  free(region);
  return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *own, struct ibv_comp_channel *channel, int vector) {
  struct ibv_cq *queue = calloc(1, sizeof(*queue));
  (void)size, (void)own, (void)channel, (void)vector;
  queue->context = context;
  return queue;
}

int ibv_destroy_cq(struct ibv_cq *queue) {
  free(queue);
  return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *attr) {
  struct ibv_qp *pair = calloc(1, sizeof(*pair));
  (void)attr;
  pair->context = domain->context;
  pair->pd = domain;
  pair->qp_num = 17;
  return pair;
}

int ibv_modify_qp(struct ibv_qp *pair, struct ibv_qp_attr *attr, int mask) {
  (void)pair, (void)mask;
  return fails("modify") && attr->qp_state == IBV_QPS_RTR ? EINVAL : 0;
}

int ibv_query_qp(struct ibv_qp *pair, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
  (void)pair, (void)attr, (void)mask, (void)init;
  return 0;
}

int ibv_destroy_qp(struct ibv_qp *pair) {
  free(pair);
  return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  (void)context, (void)event;
  return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_fork_init(void) { return 0; }

const char *ibv_event_type_str(enum ibv_event_type type) {
  (void)type;
  return "an event";
}
