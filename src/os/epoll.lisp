;;;; epoll, edge-triggered, and the eventfd that wakes a thread from its wait. A descriptor is
;;;; watched once, for input and output together, so that no call is needed later; an event carries
;;;; a token of up to 62 bits that the watcher chose.
;;;;
;;;; struct epoll_event has 32 bits of flags and 64 bits of data. Only on x86-64 it is packed (12
;;;; octets); elsewhere the data is aligned (16 octets, data at 8).

(in-package #:clgrpc.os)

(define-constants
  (+event-in+ "EPOLLIN" 1)
  (+event-out+ "EPOLLOUT" 4)
  (+event-error+ "EPOLLERR" 8)
  (+event-hang-up+ "EPOLLHUP" #x10)
  (+event-read-hang-up+ "EPOLLRDHUP" #x2000)
  (+event-edge+ "EPOLLET" #x80000000)
  (+epoll-add+ "EPOLL_CTL_ADD" 1)
  (+epoll-delete+ "EPOLL_CTL_DEL" 2)
  (+epoll-cloexec+ "EPOLL_CLOEXEC" #x80000)
  (+eventfd-cloexec+ "EFD_CLOEXEC" #x80000)
  (+eventfd-nonblock+ "EFD_NONBLOCK" #x800)
  (+event-octets+ "sizeof (struct epoll_event)" #+x86-64 12 #-x86-64 16)
  (+event-data-offset+ "offsetof (struct epoll_event, data)" #+x86-64 4 #-x86-64 8))

(deftype event-token ()
  "The token that an event carries."
  '(unsigned-byte 62))

(defun open-epoll ()
  "Return a new epoll descriptor, or a negated errno."
  (syscall ("epoll_create1" int) (int +epoll-cloexec+)))

(define-hot watch-descriptor ((epoll fixnum) (descriptor fixnum) (token event-token)) result
  "Make EPOLL report each change of DESCRIPTOR to readable or writable, with TOKEN."
  (let ((event (make-octets +event-octets+)))
    (setf (u32le event 0) (logior +event-in+ +event-out+ +event-read-hang-up+ +event-edge+)
          (u64le event +event-data-offset+) token)
    (with-pinned-objects (event)
      (syscall ("epoll_ctl" int) (int epoll) (int +epoll-add+) (int descriptor)
               (system-area-pointer (vector-sap event))))))

(define-hot forget-descriptor ((epoll fixnum) (descriptor fixnum)) result
  "Make EPOLL stop reporting DESCRIPTOR. Closing a descriptor has the same effect."
  (syscall ("epoll_ctl" int) (int epoll) (int +epoll-delete+) (int descriptor)
           (system-area-pointer (int-sap 0))))

(defun make-event-area (count)
  "Return octets for COUNT events."
  (make-octets (* count +event-octets+)))

(define-hot wait-for-events ((epoll fixnum) (area octets) (timeout-ms (signed-byte 32))) result
  "Wait until EPOLL has events or TIMEOUT-MS milliseconds have passed (-1: without limit) and write
them to AREA. Return the number of events, or the negated EINTR if a signal came first."
  (with-pinned-objects (area)
    (filling (area 0 (length area))
      (syscall ("epoll_wait" int) (int epoll) (system-area-pointer (vector-sap area))
               (int (floor (length area) +event-octets+)) (int timeout-ms)))))

;;; The call is made by its number, since older C libraries have no function for it.
(define-constants
  (+epoll-pwait2+ "SYS_epoll_pwait2" 441)
  (+set-timer-slack+ "PR_SET_TIMERSLACK" 29))

(define-hot wait-for-events-until ((epoll fixnum) (area octets) (timespec octets)
                                   (timeout-ns (unsigned-byte 62)))
    result
  "Wait as WAIT-FOR-EVENTS does, but for TIMEOUT-NS nanoseconds; TIMESPEC, 16 octets, is
overwritten. Return the negated ENOSYS if the kernel has no epoll_pwait2 (Linux before 5.11)."
  (multiple-value-bind (seconds ns) (floor timeout-ns 1000000000)
    (setf (u64le timespec 0) seconds
          (u64le timespec 8) ns)
    (with-pinned-objects (area timespec)
      (filling (area 0 (length area))
        (syscall ("syscall" (signed 64)) ((signed 64) +epoll-pwait2+) ((signed 64) epoll)
                 (system-area-pointer (vector-sap area))
                 ((signed 64) (floor (length area) +event-octets+))
                 (system-area-pointer (vector-sap timespec))
                 (system-area-pointer (int-sap 0)) ((signed 64) 0))))))

(defun set-timer-slack (ns)
  "Set the time by which the kernel may delay the end of this thread's waits to NS nanoseconds. The
kernel's default is 50,000; it delays waits in order to end several of them at once."
  (syscall ("prctl" int) (int +set-timer-slack+) ((unsigned 64) ns) ((unsigned 64) 0)
           ((unsigned 64) 0) ((unsigned 64) 0)))

(define-hot (event-flags :inline t) ((area octets) (index (unsigned-byte 24))) (unsigned-byte 32)
  "The flags of the event at INDEX of AREA."
  (u32le area (* index +event-octets+)))

(define-hot (event-token :inline t) ((area octets) (index (unsigned-byte 24))) event-token
  "The token of the event at INDEX of AREA."
  (let ((at (+ (* index +event-octets+) +event-data-offset+)))
    (logior (u32le area at)
            (ash (ldb (byte 30 0) (u32le area (+ at 4))) 32))))

(defun open-eventfd ()
  "Return a new eventfd, or a negated errno."
  (syscall ("eventfd" int) ((unsigned 32) 0) (int (logior +eventfd-cloexec+ +eventfd-nonblock+))))

(define-hot write-eventfd ((descriptor fixnum)) result
  "Make the eventfd DESCRIPTOR readable again. Each write wakes a thread that watches it
edge-triggered, so that this thread never has to read it."
  ;; the pointer object costs little beside the system call
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
  (with-alien ((one (unsigned 64) 1))
    (retrying (syscall ("write" (signed 64)) (int descriptor) ((* (unsigned 64)) (addr one))
                       ((unsigned 64) 8)))))
