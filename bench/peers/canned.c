/* The server of bench/parts/loops.py that costs nearly nothing: each request on an HTTP/2 connection is
   answered with the same octets, whatever it asks. One thread per connection, one recv and one send
   for all requests that have come. Prints "listening on 127.0.0.1:PORT".

   The answer is a Feature of the RouteGuide with its name. The first one on a connection puts its
   header fields into the dynamic table, so that the others are as short as a real server's. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 262144, PREFACE = 24, FRAME = 9, LONGEST_ANSWER = 256 };
enum { DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };

#define NAME "Patriots Path, Mendham, NJ 07945, USA"

struct connection {
  int socket, known; /* KNOWN: the peer's dynamic table has the fields of an answer */
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
  unsigned char *at = c->out + c->out_count;
  unsigned char head[FRAME] = {length >> 16, length >> 8, length, type, flags,
                               stream >> 24, stream >> 16, stream >> 8, stream};
  memcpy(at, head, FRAME);
  memcpy(at + FRAME, payload, length);
  c->out_count += FRAME + length;
}

static void answer(struct connection *c, uint32_t stream) {
  static const char first_head[] = "\x88\x5f\x10" "application/grpc";
  static const char first_end[] = "\x40\x0b" "grpc-status" "\x01" "0";
  static const char head[] = "\x88\xbf", end[] = "\xbe";
  unsigned char message[7 + sizeof NAME - 1] = {0, 0, 0, 0, 2 + sizeof NAME - 1, 0x0a,
                                                sizeof NAME - 1};
  memcpy(message + 7, NAME, sizeof NAME - 1);
  if (c->out_count + LONGEST_ANSWER > ROOM) flush_output(c);
  frame(c, HEADERS, END_HEADERS, stream, c->known ? head : first_head,
        (c->known ? sizeof head : sizeof first_head) - 1);
  frame(c, DATA, 0, stream, message, sizeof message);
  frame(c, HEADERS, END_HEADERS | END_STREAM, stream, c->known ? end : first_end,
        (c->known ? sizeof end : sizeof first_end) - 1);
  c->known = 1;
}

static void take_frames(struct connection *c) {
  size_t at = 0;
  while (c->in_count - at >= FRAME) {
    unsigned char *head = c->in + at;
    size_t length = head[0] << 16 | head[1] << 8 | head[2];
    int type = head[3], flags = head[4];
    if (c->in_count - at < FRAME + length) break;
    if ((type == HEADERS || type == DATA) && flags & END_STREAM)
      answer(c, (uint32_t)head[5] << 24 | head[6] << 16 | head[7] << 8 | head[8]);
    else if (type == SETTINGS && !(flags & ACK))
      frame(c, SETTINGS, ACK, 0, "", 0);
    else if (type == PING && !(flags & ACK))
      frame(c, PING, ACK, 0, head + FRAME, length);
    at += FRAME + length;
  }
  memmove(c->in, c->in + at, c->in_count -= at);
}

static void *serve(void *argument) {
  struct connection *c = argument;
  int yes = 1, greeted = 0;
  setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  frame(c, SETTINGS, 0, 0, "", 0);
  frame(c, 8, 0, 0, "\x7f\x00\x00\x00", 4); /* WINDOW_UPDATE: requests are never held back */
  flush_output(c);
  for (;;) {
    ssize_t count = recv(c->socket, c->in + c->in_count, ROOM - c->in_count, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    c->in_count += count;
    if (!greeted && c->in_count >= PREFACE) {
      memmove(c->in, c->in + PREFACE, c->in_count -= PREFACE);
      greeted = 1;
    }
    if (greeted) take_frames(c);
    flush_output(c);
  }
  close(c->socket);
  free(c);
  return NULL;
}

int main(void) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
  must(listen(listener, 64) == 0, "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    pthread_t thread;
    struct connection *c = calloc(1, sizeof *c);
    must(c != NULL, "calloc");
    c->socket = accept(listener, NULL, NULL);
    must(c->socket >= 0, "accept");
    must(pthread_create(&thread, NULL, serve, c) == 0, "pthread_create");
    pthread_detach(thread);
  }
}
