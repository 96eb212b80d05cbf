;;;; poll(2). Each call passes to the kernel all events to wait for, and the kernel answers in the
;;;; same memory.
;;;;
;;;; struct pollfd is an int, the descriptor, and two shorts: the events to wait for, and the events
;;;; that have happened. The flags are those of epoll.

(in-package #:clgrpc.os)

(define-constants
  (+poll-octets+ "sizeof (struct pollfd)" 8)
  (+poll-in+ "POLLIN" 1)
  (+poll-out+ "POLLOUT" 4)
  (+poll-error+ "POLLERR" 8)
  (+poll-hang-up+ "POLLHUP" #x10))

(defun make-poll-area (count)
  "Return octets for COUNT descriptors to poll."
  (make-octets (* count +poll-octets+)))

(defun set-polled (area index descriptor flags)
  "Set the place INDEX of AREA, so that it waits for the events FLAGS of DESCRIPTOR."
  (setf (u32le area (* index +poll-octets+)) descriptor
        (u32le area (+ 4 (* index +poll-octets+))) (ldb (byte 16 0) flags)))

(defun polled-descriptor (area index)
  "The descriptor at INDEX of AREA."
  (u32le area (* index +poll-octets+)))

(defun polled-flags (area index)
  "The flags of the events that have happened to the descriptor at INDEX of AREA."
  (ldb (byte 16 16) (u32le area (+ 4 (* index +poll-octets+)))))

(defun poll-descriptors (area count timeout-ms)
  "Wait until any of the first COUNT places of AREA has an event or TIMEOUT-MS milliseconds have
passed (-1: without limit). Return the number of places with events, or the negated EINTR if a
signal came first."
  (declare (type octets area))
  (with-pinned-objects (area)
    (filling (area 0 (length area))
      (syscall ("poll" int) (system-area-pointer (vector-sap area)) ((unsigned 64) count)
               (int timeout-ms)))))

(defun clear-eventfd (descriptor)
  "Make the eventfd DESCRIPTOR unreadable until it is written to again."
  (with-alien ((count (unsigned 64) 0))
    (retrying (syscall ("read" (signed 64)) (int descriptor) ((* (unsigned 64)) (addr count))
                       ((unsigned 64) 8)))))
