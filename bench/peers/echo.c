/* The yardstick of bench/parts/echo.py: an echo server that is epoll and nothing else, level-triggered,
   one thread, one recv and one send for each event; and a load for any echo server.

   echo serve                              prints "listening on 127.0.0.1:PORT"
   echo load PORT CONNECTIONS DEPTH        prints "ready"; for each line of its input with a number
                                           of messages it exchanges so many and prints one object

   A message is 32 octets. DEPTH messages are in flight on each connection: as many octets as come
   back are sent again. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 32, ROOM = 65536, EVENTS = 256, MOST = 1024 };

static char buffer[ROOM];

static void must(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static void watch(int epoll, int socket) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = socket};
  must(epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) == 0, "epoll_ctl");
}

static void write_all(int socket, const char *octets, size_t count) {
  while (count > 0) {
    ssize_t sent = send(socket, octets, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    must(sent > 0, "send");
    octets += sent;
    count -= sent;
  }
}

static void without_delay(int socket) {
  int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static void serve(void) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  struct epoll_event events[EVENTS];
  int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
  must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
  must(listen(listener, 1024) == 0, "listen");
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  watch(epoll, listener);
  for (;;) {
    int count = epoll_wait(epoll, events, EVENTS, -1);
    for (int i = 0; i < count; i++) {
      int from = events[i].data.fd;
      if (from == listener) {
        int socket = accept(listener, NULL, NULL);
        must(socket >= 0, "accept");
        without_delay(socket);
        watch(epoll, socket);
      } else {
        ssize_t got = recv(from, buffer, ROOM, 0);
        if (got <= 0)
          close(from);
        else
          write_all(from, buffer, got);
      }
    }
  }
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static void load(int port, int connections, int depth) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct epoll_event events[EVENTS];
  char line[64];
  int epoll = epoll_create1(0), sockets[MOST];
  must(connections <= MOST && depth * MESSAGE <= ROOM, "arguments");
  for (int i = 0; i < connections; i++) {
    sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(sockets[i], (struct sockaddr *)&address, sizeof address) == 0, "connect");
    without_delay(sockets[i]);
    watch(epoll, sockets[i]);
  }
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    long long wanted = atoll(line) * MESSAGE, received = 0, turns = 0;
    long long flying = (long long)connections * depth * MESSAGE, sent = flying;
    double begin = seconds();
    for (int i = 0; i < connections; i++) write_all(sockets[i], buffer, depth * MESSAGE);
    while (received < sent) {
      int count = epoll_wait(epoll, events, EVENTS, -1);
      turns++;
      for (int i = 0; i < count; i++) {
        static char octets[ROOM];
        ssize_t got = recv(events[i].data.fd, octets, ROOM, 0);
        must(got > 0, "recv");
        received += got;
        if (sent < wanted) {
          write_all(events[i].data.fd, octets, got);
          sent += got;
        }
      }
    }
    printf("{\"messages\": %lld, \"seconds\": %.6f, \"turns\": %lld}\n", received / MESSAGE,
           seconds() - begin, turns);
    fflush(stdout);
  }
}

int main(int count, char **arguments) {
  if (count == 2 && !strcmp(arguments[1], "serve"))
    serve();
  else if (count == 5 && !strcmp(arguments[1], "load"))
    load(atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]));
  else
    return fprintf(stderr, "usage: echo serve | echo load PORT CONNECTIONS DEPTH\n"), 2;
  return 0;
}
