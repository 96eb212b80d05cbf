;;;; poll(2): the state of a descriptor, and the eventfd that it watches.

(in-package #:clgrpc.tests.os)

(test polling-an-eventfd
  (let ((descriptor (os:open-eventfd)) (area (os:make-poll-area 1)))
    (unwind-protect
         (flet ((poll (flags)
                  (os:set-polled area 0 descriptor flags)
                  (list (os:poll-descriptors area 1 0) (os:polled-flags area 0))))
           (is (equal '(0 0) (poll os:+event-in+)))
           (is (equal (list 1 os:+event-out+) (poll (logior os:+event-in+ os:+event-out+))))
           (os:write-eventfd descriptor)
           (is (equal (list 1 os:+event-in+) (poll os:+event-in+)))
           (is (equal (list 1 os:+event-in+) (poll os:+event-in+)) "until it is cleared")
           (os:clear-eventfd descriptor)
           (is (equal '(0 0) (poll os:+event-in+)))
           (is (= descriptor (os:polled-descriptor area 0))))
      (os:close-descriptor descriptor))))
