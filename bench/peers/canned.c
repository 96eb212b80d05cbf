/* A server of RouteGuide that does what the kernel asks of any server and nothing else: epoll, and one
   recv and one send for all that has come on a connection. It knows the calls by the shape of their
   frames and answers each with the same octets, whatever it asks: GetFeature with a Feature,
   ListFeatures with a hundred, RecordRoute with the number of points, RouteChat with each note
   as soon as it comes. It heeds no flow control, and of streams of messages a connection has one at a
   time. It needs less CPU than any server can that reads requests. Prints
   "listening on 127.0.0.1:PORT".

   The first answer of a connection puts its header fields into the dynamic table, so that the others
   are as short as a real server's. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 262144, PREFACE = 24, FRAME = 9, PREFIX = 5 };
enum { DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { A_NUMBER = 0x08, A_MESSAGE = 0x0a }; /* the first octet of a Point; of a note or a Rectangle */

#define NAME "Berkshire Valley Management Area Trail, Jefferson, NJ, USA"

struct connection {
  int socket, greeted, known;  /* KNOWN: the peer's dynamic table has the fields of an answer */
  uint32_t stream, messages;   /* the stream whose messages are counted, and their number */
  size_t in_count, out_count;
  unsigned char in[ROOM], out[ROOM];
};

static void must(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static void flush_output(struct connection *c) {
  size_t sent = 0;
  while (sent < c->out_count) {
    ssize_t count = send(c->socket, c->out + sent, c->out_count - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break; /* the peer has gone; recv says so too */
    sent += count;
  }
  c->out_count = 0;
}

static void frame(struct connection *c, int type, int flags, uint32_t stream, const void *payload,
                  size_t length) {
  if (c->out_count + FRAME + length > ROOM) flush_output(c);
  unsigned char *at = c->out + c->out_count;
  unsigned char head[FRAME] = {length >> 16, length >> 8, length, type, flags,
                               stream >> 24, stream >> 16, stream >> 8, stream};
  memcpy(at, head, FRAME);
  memcpy(at + FRAME, payload, length);
  c->out_count += FRAME + length;
}

static void begin(struct connection *c, uint32_t stream) {
  static const char first[] = "\x88\x5f\x10" "application/grpc", later[] = "\x88\xbf";
  frame(c, HEADERS, END_HEADERS, stream, c->known ? later : first,
        (c->known ? sizeof later : sizeof first) - 1);
}

static void end(struct connection *c, uint32_t stream) {
  static const char first[] = "\x40\x0b" "grpc-status" "\x01" "0", later[] = "\xbe";
  frame(c, HEADERS, END_HEADERS | END_STREAM, stream, c->known ? later : first,
        (c->known ? sizeof later : sizeof first) - 1);
  c->known = 1;
}

/* COUNT features, whose place is POINT. */
static void send_features(struct connection *c, uint32_t stream, int count,
                          const unsigned char *point, size_t length) {
  enum { NAMED = sizeof NAME - 1 };
  unsigned char message[PREFIX + 4 + NAMED + 64] = {
      0, 0, 0, 0, 4 + NAMED + length, A_MESSAGE, NAMED};
  memcpy(message + PREFIX + 2, NAME, NAMED);
  message[PREFIX + 2 + NAMED] = 0x12;
  message[PREFIX + 3 + NAMED] = length;
  memcpy(message + PREFIX + 4 + NAMED, point, length);
  while (count--) frame(c, DATA, 0, stream, message, PREFIX + 4 + NAMED + length);
}

static void send_count(struct connection *c, uint32_t stream, uint32_t count) {
  unsigned char message[PREFIX + 6] = {0, 0, 0, 0, 0, A_NUMBER};
  int length = PREFIX + 1;
  for (; count >= 128; count >>= 7) message[length++] = count | 128;
  message[length++] = count;
  message[PREFIX - 1] = length - PREFIX;
  frame(c, DATA, 0, stream, message, length);
}

static void take_data(struct connection *c, uint32_t stream, int last, const unsigned char *data,
                      size_t length) {
  static const unsigned char place[] = "\x08\xfa\xf9\x94\xc3\x01\x10\xc6\x8a\xba\xe9\x02";
  int kind = length > PREFIX ? data[PREFIX] : 0;
  if (c->stream != stream) c->stream = stream, c->messages = 0;
  if (last && length > 0) { /* one request, a Rectangle or a Point */
    begin(c, stream);
    if (kind == A_MESSAGE)
      send_features(c, stream, 100, place, sizeof place - 1);
    else
      send_features(c, stream, 1, data + PREFIX, length - PREFIX < 64 ? length - PREFIX : 0);
    end(c, stream);
  } else if (length > 0 && kind == A_MESSAGE) { /* a note */
    if (c->messages == 0) begin(c, stream);
    c->messages = UINT32_MAX;
    frame(c, DATA, 0, stream, data, length);
  } else if (length > 0) { /* a point */
    c->messages++;
  } else if (last) {
    if (c->messages != UINT32_MAX) begin(c, stream), send_count(c, stream, c->messages);
    end(c, stream);
  }
}

static void take_frames(struct connection *c) {
  size_t at = 0;
  while (c->in_count - at >= FRAME) {
    unsigned char *head = c->in + at;
    size_t length = head[0] << 16 | head[1] << 8 | head[2];
    int type = head[3], flags = head[4];
    if (c->in_count - at < FRAME + length) break;
    if (type == DATA)
      take_data(c, (uint32_t)head[5] << 24 | head[6] << 16 | head[7] << 8 | head[8],
                flags & END_STREAM, head + FRAME, length);
    else if (type == SETTINGS && !(flags & ACK))
      frame(c, SETTINGS, ACK, 0, "", 0);
    else if (type == PING && !(flags & ACK))
      frame(c, PING, ACK, 0, head + FRAME, length);
    at += FRAME + length;
  }
  memmove(c->in, c->in + at, c->in_count -= at);
}

/* 0 if the peer has gone. */
static int take_input(struct connection *c) {
  ssize_t count = recv(c->socket, c->in + c->in_count, ROOM - c->in_count, 0);
  if (count < 0 && errno == EINTR) return 1;
  if (count <= 0) return 0;
  c->in_count += count;
  if (!c->greeted && c->in_count >= PREFACE) {
    memmove(c->in, c->in + PREFACE, c->in_count -= PREFACE);
    c->greeted = 1;
  }
  if (c->greeted) take_frames(c);
  flush_output(c);
  return 1;
}

static void take_connection(int poll, int listener) {
  int yes = 1;
  struct connection *c = calloc(1, sizeof *c);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  must(c != NULL, "calloc");
  c->socket = accept(listener, NULL, NULL);
  must(c->socket >= 0, "accept");
  setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  must(epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event) == 0, "epoll_ctl");
  frame(c, SETTINGS, 0, 0, "", 0);
  frame(c, WINDOW_UPDATE, 0, 0, "\x7f\x00\x00\x00", 4); /* requests are never held back */
  flush_output(c);
}

int main(void) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
  struct epoll_event events[64] = {{.events = EPOLLIN, .data.ptr = NULL}};
  must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
  must(listen(listener, 256) == 0, "listen");
  must(epoll_ctl(poll, EPOLL_CTL_ADD, listener, events) == 0, "epoll_ctl");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    int count = epoll_wait(poll, events, 64, -1);
    must(count >= 0 || errno == EINTR, "epoll_wait");
    for (int i = 0; i < count; i++) {
      struct connection *c = events[i].data.ptr;
      if (c == NULL) {
        take_connection(poll, listener);
      } else if (!take_input(c)) {
        close(c->socket);
        free(c);
      }
    }
  }
}
