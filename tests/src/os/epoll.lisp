;;;; Events: tokens, edges, wake-ups.

(in-package #:clgrpc.tests.os)

(defun events (epoll area timeout-ms)
  "The (token . flags) that EPOLL has now."
  (let ((count (loop for count = (os:wait-for-events epoll area timeout-ms)
                     while (= count (- os:+eintr+))
                     finally (return count))))
    (loop for i below count
          collect (cons (os:event-token area i) (os:event-flags area i)))))

(defmacro with-epoll ((epoll area) &body body)
  `(let ((,epoll (os:open-epoll)) (,area (os:make-event-area 8)))
     (unwind-protect (progn ,@body) (os:close-descriptor ,epoll))))

(test events-come-once
  (with-epoll (epoll area)
    (with-pair (client server)
      (let ((token (1- (ash 1 62))))
        (is (= 0 (os:watch-descriptor epoll server token)))
        (is (equal (list (cons token os:+event-out+)) (events epoll area 1000)))
        (is (null (events epoll area 0)) "edge-triggered")
        (os:send-octets client (octets-of 1) 0 1)
        (is (equal (list (cons token (logior os:+event-in+ os:+event-out+)))
                   (events epoll area 1000)))
        (is (null (events epoll area 0)))
        (os:send-octets client (octets-of 2) 0 1)
        (is (= 1 (length (events epoll area 1000))) "more octets are a new edge")
        (os:shutdown-output client)
        (is (logtest os:+event-read-hang-up+ (cdr (first (events epoll area 1000)))))
        (is (= 0 (os:forget-descriptor epoll server)))
        (is (os:failed-p (os:forget-descriptor epoll server)))))))

(test several-events
  (with-epoll (epoll area)
    (with-pair (client server)
      (os:watch-descriptor epoll server 7)
      (os:watch-descriptor epoll client 8)
      (is (equal '(7 8) (sort (mapcar #'car (events epoll area 1000)) #'<))))))

(test eventfd-wakes-each-time
  (with-epoll (epoll area)
    (let ((eventfd (os:open-eventfd)))
      (os:watch-descriptor epoll eventfd 5)
      (events epoll area 0)
      (is (null (events epoll area 0)))
      (dotimes (i 3)
        (is (= 8 (os:write-eventfd eventfd)))
        (is (equal '(5) (mapcar #'car (events epoll area 1000))) "an unread eventfd wakes too")
        (is (null (events epoll area 0))))
      (os:close-descriptor eventfd))))

(test waiting-has-a-limit
  (with-epoll (epoll area)
    (let ((start (monotonic-ns)))
      (is (null (events epoll area 20)))
      (is (<= 20000000 (- (monotonic-ns) start))))))
