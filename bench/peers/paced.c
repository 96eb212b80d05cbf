/* A load of GetFeature that does what the kernel asks of any such load and nothing else: on one
   connection it begins calls at a rate, evenly or those of some time together, and counts the ends of
   the answers. One sleep until a call is due or input comes, one send for the calls that are due, one
   recv for all that has come. A load that measures latencies needs more.

   usage: paced PORT CALLS RATE TOGETHER-µs */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 262144, FRAME = 9, LONGEST_REQUEST = 256, WINDOW = 32768 };
enum { DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };

static unsigned char in[ROOM], out[ROOM];
static size_t in_count, out_count;

static void must(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static void frame(int type, int flags, uint32_t stream, const void *payload, size_t length) {
  unsigned char head[FRAME] = {length >> 16, length >> 8, length, type, flags,
                               stream >> 24, stream >> 16, stream >> 8, stream};
  memcpy(out + out_count, head, FRAME);
  memcpy(out + out_count + FRAME, payload, length);
  out_count += FRAME + length;
}

static void flush_output(int connection) {
  size_t sent = 0;
  while (sent < out_count) {
    ssize_t count = send(connection, out + sent, out_count - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    must(count > 0, "send");
    sent += count;
  }
  out_count = 0;
}

/* The first request puts its header fields into the dynamic table. */
static void begin_call(int connection, uint32_t stream) {
  static const char first[] = "\x83\x86" "\x44\x21" "/routeguide.RouteGuide/GetFeature"
                              "\x41\x09" "localhost" "\x5f\x10" "application/grpc"
                              "\x40\x02" "te" "\x08" "trailers";
  static const char later[] = "\x83\x86\xc1\xc0\xbf\xbe";
  static const char message[] = "\0\0\0\0\x11"
      "\x08\xfa\xf9\x94\xc3\x01" "\x10\xc6\x8a\xba\xe9\xfd\xff\xff\xff\xff\x01";
  if (out_count + LONGEST_REQUEST > ROOM) flush_output(connection);
  frame(HEADERS, END_HEADERS, stream, stream == 1 ? first : later,
        (stream == 1 ? sizeof first : sizeof later) - 1);
  frame(DATA, END_STREAM, stream, message, sizeof message - 1);
}

/* How many answers have ended. */
static long take_input(int connection) {
  static size_t unacknowledged;
  size_t at = 0;
  long ended = 0;
  ssize_t count = recv(connection, in + in_count, ROOM - in_count, 0);
  if (count < 0 && errno == EINTR) return 0;
  if (count == 0) errno = ECONNRESET;
  must(count > 0, "recv");
  in_count += count;
  while (in_count - at >= FRAME) {
    unsigned char *head = in + at;
    size_t length = head[0] << 16 | head[1] << 8 | head[2];
    int type = head[3], flags = head[4];
    if (in_count - at < FRAME + length) break;
    if (type == HEADERS && flags & END_STREAM) ended++;
    if (type == DATA) unacknowledged += length;
    if (type == SETTINGS && !(flags & ACK)) frame(SETTINGS, ACK, 0, "", 0);
    if (type == PING && !(flags & ACK)) frame(PING, ACK, 0, head + FRAME, length);
    at += FRAME + length;
  }
  memmove(in, in + at, in_count -= at);
  if (unacknowledged > WINDOW) {
    uint32_t more = htonl(unacknowledged);
    frame(WINDOW_UPDATE, 0, 0, &more, sizeof more);
    unacknowledged = 0;
  }
  return ended;
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int main(int count, char **arguments) {
  must(count == 5, "usage: paced PORT CALLS RATE TOGETHER-µs");
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  long calls = atol(arguments[2]), begun = 0, ended = 0;
  double rate = atof(arguments[3]), together = atof(arguments[4]) * 1e3;
  long burst = together > 0 ? rate * together / 1e9 + 0.5 : 1;
  int connection = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  must(connect(connection, (struct sockaddr *)&address, sizeof address) == 0, "connect");
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  memcpy(out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
  out_count = 24;
  frame(SETTINGS, 0, 0, "", 0);
  int64_t start = now_ns();
  while (ended < calls) {
    int64_t now = now_ns(), due = start + begun / rate * 1e9;
    for (; begun < calls && due <= now; due = start + begun / rate * 1e9)
      for (long i = 0; i < burst && begun < calls; i++) begin_call(connection, 2 * begun++ + 1);
    if (out_count > 0) flush_output(connection);
    int64_t rest = due - now_ns();
    if (begun < calls && rest < 0) rest = 0;
    struct timespec wait = {rest / 1000000000, rest % 1000000000};
    struct pollfd poll = {.fd = connection, .events = POLLIN};
    if (ppoll(&poll, 1, begun < calls ? &wait : NULL, NULL) > 0) ended += take_input(connection);
  }
  printf("%ld calls\n", ended);
}
