/* The load of bench/parts/http_get.py: GETs over HTTP/1.1 connections that stay open, one in flight on each.

   http load PORT PATH CONNECTIONS         prints "ready"; for each line of its input with a number
                                           of requests it makes so many and prints one object

   All answers have as many octets as the first, whose head says content-length. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 65536, EVENTS = 256, MOST = 1024 };

static char request[512], answer[ROOM];
static size_t request_length, answer_length;

static void must(int good, const char *what) {
  if (!good) {
    perror(what);
    exit(1);
  }
}

static void ask(int socket) {
  must(send(socket, request, request_length, MSG_NOSIGNAL) == (ssize_t)request_length, "send");
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

/* Ask once, and learn how long answers are. */
static void learn(int socket) {
  size_t got = 0;
  ask(socket);
  for (;;) {
    ssize_t more = recv(socket, answer + got, ROOM - 1 - got, 0);
    must(more > 0, "recv");
    got += more;
    answer[got] = 0;
    char *end = strstr(answer, "\r\n\r\n"), *length = strcasestr(answer, "content-length:");
    if (end && length) {
      must(!strncmp(answer, "HTTP/1.1 200 ", 13), "status");
      answer_length = end + 4 - answer + atol(length + 15);
      if (got >= answer_length) return;
    }
  }
}

static void load(int port, const char *path, int connections) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct epoll_event events[EVENTS];
  static size_t left[MOST];
  char line[64];
  int epoll = epoll_create1(0), sockets[MOST], yes = 1;
  must(connections <= MOST, "arguments");
  request_length = snprintf(request, sizeof request,
                            "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\n"
                            "Accept: */*\r\n\r\n", path);
  for (int i = 0; i < connections; i++) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(sockets[i], (struct sockaddr *)&address, sizeof address) == 0, "connect");
    setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, sockets[i], &event) == 0, "epoll_ctl");
    learn(sockets[i]);
  }
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    long long wanted = atoll(line), asked = connections, answered = 0;
    double begin = seconds();
    for (int i = 0; i < connections; i++) {
      left[i] = answer_length;
      ask(sockets[i]);
    }
    while (answered < asked) {
      int count = epoll_wait(epoll, events, EVENTS, -1);
      for (int i = 0; i < count; i++) {
        int one = events[i].data.u32;
        ssize_t got = recv(sockets[one], answer, ROOM, 0);
        must(got > 0 && (size_t)got <= left[one], "recv");
        left[one] -= got;
        if (left[one] == 0) {
          answered++;
          if (asked < wanted) {
            asked++;
            left[one] = answer_length;
            ask(sockets[one]);
          }
        }
      }
    }
    printf("{\"requests\": %lld, \"seconds\": %.6f}\n", answered, seconds() - begin);
    fflush(stdout);
  }
}

int main(int count, char **arguments) {
  if (count != 5 || strcmp(arguments[1], "load"))
    return fprintf(stderr, "usage: http load PORT PATH CONNECTIONS\n"), 2;
  load(atoi(arguments[2]), arguments[3], atoi(arguments[4]));
  return 0;
}
