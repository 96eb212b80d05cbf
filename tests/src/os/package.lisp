;;;; Tests of clgrpc.os, one file per source file. Everything happens on loopback.

(defpackage #:clgrpc.tests.os
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:os #:clgrpc.os) (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.os)

(def-suite :clgrpc.os :description "Sockets, epoll, eventfd, signals.")

(defun wait-readable (&rest descriptors)
  "Wait until one of DESCRIPTORS becomes readable or writable."
  (let ((epoll (os:open-epoll)) (area (os:make-event-area 4)))
    (unwind-protect
         (progn
           (dolist (descriptor descriptors)
             (os:watch-descriptor epoll descriptor 1))
           (loop for count = (os:wait-for-events epoll area 10000)
                 while (= count (- os:+eintr+))
                 finally (return (plusp count))))
      (os:close-descriptor epoll))))
