;;;; A poller waits for events of descriptors: six functions, and the place where they leave the
;;;; events. This file has two pollers, epoll and poll(2); the second shows that the loop needs no
;;;; more of a poller. Other pollers, such as the simulator's, fill in the same structure; a
;;;; descriptor is any number on which a poller and its byte channels agree.
;;;;
;;;; A descriptor is added once and reported edge-triggered: after an event the loop reads or writes
;;;; until the operation would block; only then does it wait for another event. A level-triggered
;;;; poller calls INTEREST, a function of the loop, before each wait: INTEREST returns the events of
;;;; a descriptor that are not yet known to the loop. A token is never 0.

(in-package #:clgrpc.loop)

;;; The flags of an event, which may be combined
(defconstant +readable+ os:+event-in+
  "Octets can be read.")
(defconstant +writable+ os:+event-out+
  "Octets can be written.")
(defconstant +ended+ os:+event-read-hang-up+
  "The peer will send no more.")
(defconstant +failed+ (logior os:+event-error+ os:+event-hang-up+)
  "The descriptor has failed; a read returns the reason.")

(defconstant +most-events+ 256
  "The maximum number of events that one wait reports; the next wait reports the rest.")

(defstruct (poller (:copier nil))
  "A poller. The thread that runs the loop calls a poller's functions; any thread may call WAKE."
  ;; (poller descriptor token) returns a result as the kernel's calls do
  (add nil :type function :read-only t)
  ;; (poller descriptor) returns a result as the kernel's calls do
  (remove nil :type function :read-only t)
  ;; (poller timeout-ns) waits until there are events, WAKE is called or TIMEOUT-NS have passed (-1:
  ;; without limit; it may take up to a millisecond longer), puts the events into TOKENS and FLAGS
  ;; and returns their number
  (wait nil :type function :read-only t)
  ;; (poller) may be called in any thread
  (wake nil :type function :read-only t)
  ;; (poller) ends it
  (close nil :type function :read-only t)
  ;; (token) returns the events of TOKEN's descriptor that are new to the loop; set by the loop
  (interest (constantly 0) :type function)
  ;; the datum of the functions above
  (state nil)
  ;; the token of each event found
  (tokens (make-array +most-events+ :element-type 'os:event-token :initial-element 0)
   :type (simple-array os:event-token (256)) :read-only t)
  ;; the flags of each event: a combination of +READABLE+ and so on
  (flags (make-array +most-events+ :element-type '(unsigned-byte 32) :initial-element 0)
   :type (simple-array (unsigned-byte 32) (256)) :read-only t))

(declaim (sb-ext:freeze-type poller))

(defmethod print-object ((poller poller) stream)
  (print-unreadable-object (poller stream :type t :identity t)))

(document-functions
  make-poller "Return a poller with these functions; see the type POLLER."
  poller-tokens "The vector into which WAIT puts the tokens of the events it found."
  poller-flags "The vector into which WAIT puts the flags of each event: a combination of +READABLE+
and so on."
  poller-state "An object that belongs to POLLER's functions.")

;;; epoll

(defstruct (epoll (:copier nil))
  "The state of a poller that uses epoll."
  (descriptor -1 :type fixnum)          ; the descriptor of epoll itself
  (eventfd -1 :type fixnum)             ; the eventfd to which WAKE writes
  ;; the vector in which the kernel leaves events
  (area (os:make-event-area +most-events+) :type octets)
  (timespec (make-octets 16) :type octets)) ; a time-out, for the kernel

(declaim (sb-ext:freeze-type epoll))

(define-hot add-to-epoll ((poller poller) (descriptor fixnum) (token os:event-token)) os:result
  (os:watch-descriptor (epoll-descriptor (the epoll (poller-state poller))) descriptor token))

(define-hot remove-from-epoll ((poller poller) (descriptor fixnum)) os:result
  (os:forget-descriptor (epoll-descriptor (the epoll (poller-state poller))) descriptor))

(define-hot timeout-ms ((timeout-ns (signed-byte 62))) (signed-byte 32)
  (if (minusp timeout-ns)
      -1
      (min (ceiling (the nanoseconds timeout-ns) 1000000) #x7FFFFFFF)))

(define-hot note-epoll-events ((poller poller) (found os:result)) (integer 0 256)
  "Store the events, of which FOUND is the number or a negated errno, in the vectors of POLLER."
  (let ((area (epoll-area (the epoll (poller-state poller))))
        (tokens (poller-tokens poller))
        (flags (poller-flags poller))
        (count 0))
    (declare (type (integer 0 256) count))
    ;; a negative result is EINTR, which each garbage collection in another thread causes
    (dotimes (i (the (integer 0 256) (max 0 found)) count)
      (let ((token (os:event-token area i)))
        (unless (zerop token)           ; the eventfd
          (setf (aref tokens count) token
                (aref flags count) (os:event-flags area i))
          (incf count))))))

(define-hot wait-for-epoll ((poller poller) (timeout-ns (signed-byte 62))) index
  (let ((epoll (the epoll (poller-state poller))))
    (note-epoll-events poller (os:wait-for-events (epoll-descriptor epoll) (epoll-area epoll)
                                                  (timeout-ms timeout-ns)))))

(define-hot wait-for-epoll-precisely ((poller poller) (timeout-ns (signed-byte 62))) index
  "Do what WAIT-FOR-EPOLL does, but end the wait to the nanosecond if the kernel can do that."
  (let ((epoll (the epoll (poller-state poller))))
    (if (plusp timeout-ns)
        (let ((found (os:wait-for-events-until (epoll-descriptor epoll) (epoll-area epoll)
                                               (epoll-timespec epoll) timeout-ns)))
          (if (= found (- os:+enosys+))
              (wait-for-epoll poller timeout-ns)
              (note-epoll-events poller found)))
        (wait-for-epoll poller timeout-ns))))

(define-hot wake-epoll ((poller poller)) null
  (os:write-eventfd (epoll-eventfd (the epoll (poller-state poller))))
  nil)

(defun close-epoll (poller)
  (let ((epoll (poller-state poller)))
    (os:close-descriptor (epoll-eventfd epoll))
    (os:close-descriptor (epoll-descriptor epoll))))

(defun must-have (operation result)
  "Return RESULT if it is a descriptor; signal SOCKET-ERROR if it is a negated errno."
  (if (os:failed-p result)
      (error 'socket-error :operation operation :address "this process"
                           :reason (os:errno-text result))
      result))

(defun make-epoll-poller (&key precise)
  "Return a poller that uses epoll. If PRECISE is true, the poller's waits end to the nanosecond
instead of the millisecond if the kernel can do that (Linux 5.11). PRECISE is meant for timers that
must be exact; each such timer costs a turn of the loop. Signal SOCKET-ERROR if the process has no
descriptors left."
  (let* ((descriptor (must-have "make an epoll descriptor for" (os:open-epoll)))
         (eventfd (handler-bind ((error (lambda (error)
                                          (declare (ignore error))
                                          (os:close-descriptor descriptor))))
                    (must-have "make an eventfd for" (os:open-eventfd)))))
    (os:watch-descriptor descriptor eventfd 0)
    (make-poller :add #'add-to-epoll :remove #'remove-from-epoll
                 :wait (if precise #'wait-for-epoll-precisely #'wait-for-epoll)
                 :wake #'wake-epoll :close #'close-epoll
                 :state (make-epoll :descriptor descriptor :eventfd eventfd))))

;;; poll(2)

(defstruct (polled (:copier nil))
  "The state of a poller that uses poll(2)."
  (eventfd -1 :type fixnum)             ; the eventfd to which WAKE writes
  ;; tokens by descriptor; 0: not added
  (tokens (make-array 64 :initial-element 0) :type simple-vector)
  (area (os:make-poll-area 64) :type octets) ; the kernel's pollfd structures
  ;; the descriptor with which a scan begins; it changes, so that no descriptor is neglected
  (next 0 :type index))

(defun add-to-poll (poller descriptor token)
  (let ((polled (poller-state poller)))
    (setf (polled-tokens polled)
          (let ((old (polled-tokens polled)))
            (if (< descriptor (length old))
                old
                (replace (make-array (* 2 (1+ descriptor)) :initial-element 0) old)))
          (svref (polled-tokens polled) descriptor) token)
    0))

(defun remove-from-poll (poller descriptor)
  ;; a poller that has taken the place of another may not know DESCRIPTOR
  (let ((tokens (polled-tokens (poller-state poller))))
    (when (< descriptor (length tokens)) (setf (svref tokens descriptor) 0)))
  0)

(defun fill-poll-area (poller)
  "Write the events to wait for into the area. Return the number of places used; the first is the
eventfd."
  (let* ((polled (poller-state poller))
         (tokens (polled-tokens polled))
         (length (length tokens))
         (count 1))
    (when (< (length (polled-area polled)) (* 8 (1+ length)))
      (setf (polled-area polled) (os:make-poll-area (1+ length))))
    (os:set-polled (polled-area polled) 0 (polled-eventfd polled) +readable+)
    (loop for i below length
          for descriptor = (mod (+ i (polled-next polled)) length)
          for token = (svref tokens descriptor)
          for flags = (if (zerop token) 0 (funcall (poller-interest poller) token))
          unless (zerop flags)
            do (os:set-polled (polled-area polled) count descriptor flags)
               (incf count))
    count))

(defun wait-for-poll (poller timeout-ns)
  (let* ((polled (poller-state poller))
         (tokens (polled-tokens polled))
         (count (fill-poll-area poller))
         (area (polled-area polled))
         (found 0))
    (when (plusp (os:poll-descriptors area count (timeout-ms timeout-ns)))
      (unless (zerop (os:polled-flags area 0)) (os:clear-eventfd (polled-eventfd polled)))
      (loop for i from 1 below count
            for flags = (os:polled-flags area i)
            while (< found +most-events+)
            unless (zerop flags)
              do (let ((descriptor (os:polled-descriptor area i)))
                   (setf (aref (poller-tokens poller) found) (svref tokens descriptor)
                         (aref (poller-flags poller) found) flags
                         (polled-next polled) (1+ descriptor))
                   (incf found))))
    found))

(defun wake-poll (poller)
  (os:write-eventfd (polled-eventfd (poller-state poller)))
  nil)

(defun make-poll-poller ()
  "Return a poller that uses poll(2). The time of its turns grows with the number of descriptors.
Signal SOCKET-ERROR if the process has no descriptors left."
  (make-poller :add #'add-to-poll :remove #'remove-from-poll :wait #'wait-for-poll :wake #'wake-poll
               :close (lambda (poller)
                        (os:close-descriptor (polled-eventfd (poller-state poller))))
               :state (make-polled
                       :eventfd (must-have "make an eventfd for" (os:open-eventfd)))))

(defvar *make-poller* nil
  "A function without arguments that makes the poller of each loop that is made without a poller
argument, or nil if the environment chooses the kind of poller.")

(defun poller-maker (strategy)
  "Return the function that makes pollers of the first available kind in STRATEGY, or pollers that
use epoll if no kind in it is available. STRATEGY is nil, or names separated by commas as in gRPC's
variable GRPC_POLL_STRATEGY."
  (or (loop for name in (uiop:split-string (or strategy "") :separator ", ")
            for maker = (rest (assoc name '(("epoll" . make-epoll-poller)
                                            ("epoll1" . make-epoll-poller)
                                            ("poll" . make-poll-poller))
                                     :test #'string-equal))
            when maker return maker)
      'make-epoll-poller))

(defun make-poller-by-default ()
  (funcall (or *make-poller* (poller-maker (sb-ext:posix-getenv "GRPC_POLL_STRATEGY")))))
