/* A server of RouteGuide that does what the kernel asks of any server and nothing else: epoll, and one
   recv and one send for all that has come on a connection. It knows the calls by the shape of their
   frames and answers each with the same octets, whatever it asks: GetFeature with a Feature,
   ListFeatures with a hundred, RecordRoute with the number of points, RouteChat with each note
   as soon as it comes. It heeds no flow control, and of streams of messages a connection has one at a
   time. It needs less CPU than any server can that reads requests. Prints
   "listening on 127.0.0.1:PORT".

   canned MILLISECONDS: a helloworld.Greeter that answers SayHello so much later, with a list of what
   is due and the time-out of epoll_pwait2, in nanoseconds. All requests wait equally long, so the list
   is in order.

   The first answer of a connection puts its header fields into the dynamic table, so that the others
   are as short as a real server's. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 262144, PREFACE = 24, FRAME = 9, PREFIX = 5 };
enum { DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { A_NUMBER = 0x08, A_MESSAGE = 0x0a }; /* the first octet of a Point; of a note or a Rectangle */

#define NAME "Berkshire Valley Management Area Trail, Jefferson, NJ, USA"

struct connection {
  int socket, greeted, known;  /* KNOWN: the peer's dynamic table has the fields of an answer */
  int waiting;                 /* answers that are due later; SOCKET is -1 once the peer has gone */
  uint32_t stream, messages;   /* the stream whose messages are counted, and their number */
  size_t in_count;
  unsigned char in[ROOM];
};

/* The output of the connection at hand, which is sent before the next has its turn. */
static unsigned char out[ROOM];
static size_t out_count;

struct later {
  struct later *next;
  struct connection *connection;
  uint32_t stream;
  int64_t due;
  size_t length;
  unsigned char name[64];
};

static struct later *first_due, **end_of_due = &first_due;
static int64_t delay; /* ns; 0: answer at once */

static void must(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static void flush_output(struct connection *c) {
  size_t sent = 0;
  while (sent < out_count) {
    ssize_t count = send(c->socket, out + sent, out_count - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break; /* the peer has gone; recv says so too */
    sent += count;
  }
  out_count = 0;
}

static void frame(struct connection *c, int type, int flags, uint32_t stream, const void *payload,
                  size_t length) {
  if (out_count + FRAME + length > ROOM) flush_output(c);
  unsigned char *at = out + out_count;
  unsigned char head[FRAME] = {length >> 16, length >> 8, length, type, flags,
                               stream >> 24, stream >> 16, stream >> 8, stream};
  memcpy(at, head, FRAME);
  memcpy(at + FRAME, payload, length);
  out_count += FRAME + length;
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

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* DATA is a HelloRequest, whose only field is the name. */
static void answer_later(struct connection *c, uint32_t stream, const unsigned char *data,
                         size_t length) {
  struct later *one = calloc(1, sizeof *one);
  must(one != NULL && length > PREFIX + 2 && length - PREFIX - 2 <= sizeof one->name, "a request");
  one->connection = c, one->stream = stream, one->due = now() + delay;
  one->length = length - PREFIX - 2;
  memcpy(one->name, data + PREFIX + 2, one->length);
  c->waiting++;
  *end_of_due = one, end_of_due = &one->next;
}

static void answer_due(void) {
  static const char hello[] = "Hello, ";
  enum { GREETED = sizeof hello - 1 };
  while (first_due && first_due->due <= now()) {
    struct later *one = first_due;
    struct connection *c = one->connection;
    if (!(first_due = one->next)) end_of_due = &first_due;
    c->waiting--;
    if (c->socket >= 0) {
      size_t text = GREETED + one->length + 1;
      unsigned char message[PREFIX + 2 + GREETED + sizeof one->name + 1] = {
          0, 0, 0, 0, 2 + text, A_MESSAGE, text};
      memcpy(message + PREFIX + 2, hello, GREETED);
      memcpy(message + PREFIX + 2 + GREETED, one->name, one->length);
      message[PREFIX + 1 + text] = '!';
      begin(c, one->stream);
      frame(c, DATA, 0, one->stream, message, PREFIX + 2 + text);
      end(c, one->stream);
      flush_output(c);
    } else if (c->waiting == 0) {
      free(c);
    }
    free(one);
  }
}

/* What epoll_pwait2 may wait: until the first answer is due; for ever, NULL, if there is none. */
static struct timespec *patience(void) {
  static struct timespec time;
  if (!first_due) return NULL;
  int64_t left = first_due->due - now();
  if (left < 0) left = 0;
  time.tv_sec = left / 1000000000, time.tv_nsec = left % 1000000000;
  return &time;
}

static void take_data(struct connection *c, uint32_t stream, int last, const unsigned char *data,
                      size_t length) {
  static const unsigned char place[] = "\x08\xfa\xf9\x94\xc3\x01\x10\xc6\x8a\xba\xe9\x02";
  int kind = length > PREFIX ? data[PREFIX] : 0;
  if (c->stream != stream) c->stream = stream, c->messages = 0;
  if (delay) {
    if (length > 0) answer_later(c, stream, data, length);
  } else if (last && length > 0) { /* one request, a Rectangle or a Point */
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
    frame(c, SETTINGS, 0, 0, "", 0);
    frame(c, WINDOW_UPDATE, 0, 0, "\x7f\x00\x00\x00", 4); /* requests are never held back */
  }
  if (c->greeted) take_frames(c);
  flush_output(c);
  return 1;
}

/* All that wait. */
static void take_connections(int poll, int listener) {
  int yes = 1, socket;
  while ((socket = accept(listener, NULL, NULL)) >= 0) {
    struct connection *c = malloc(sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    must(c != NULL, "malloc");
    memset(c, 0, offsetof(struct connection, in));
    c->socket = socket;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    must(epoll_ctl(poll, EPOLL_CTL_ADD, socket, &event) == 0, "epoll_ctl");
  }
  must(errno == EAGAIN || errno == EINTR, "accept");
}

static void lose(struct connection *c) {
  close(c->socket);
  c->socket = -1;
  if (c->waiting == 0) free(c);
}

int main(int count_of_arguments, char **arguments) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
  struct epoll_event events[64] = {{.events = EPOLLIN, .data.ptr = NULL}};
  must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
  must(listen(listener, 4096) == 0, "listen");
  mallopt(M_MMAP_THRESHOLD, 4 * ROOM); /* connections are in the heap, */
  mallopt(M_TOP_PAD, 256 * ROOM);      /* which grows by 64 MB with one system call */
  mallopt(M_TRIM_THRESHOLD, INT_MAX);  /* and does not shrink */
  if (count_of_arguments > 1) delay = 1000000 * (int64_t)atoi(arguments[1]);
  must(epoll_ctl(poll, EPOLL_CTL_ADD, listener, events) == 0, "epoll_ctl");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    int count = epoll_pwait2(poll, events, 64, patience(), NULL);
    must(count >= 0 || errno == EINTR, "epoll_pwait2");
    for (int i = 0; i < count; i++) {
      struct connection *c = events[i].data.ptr;
      if (c == NULL) {
        take_connections(poll, listener);
      } else if (!take_input(c)) {
        lose(c);
      }
    }
    answer_due();
  }
}
