;;;; Coalescing: if no thread runs a loop, a thread that sends message after message on it from
;;;; outside does not write each message separately. The first +SINGLE-SENDS+ messages of a burst
;;;; are sent at once. The messages that follow closely stay in the output until
;;;;   - there is enough output (+FLUSH-OCTETS+);
;;;;   - the loop is used for anything else: the sender waits, ends its side or begins a call; a
;;;;     timer is due; another thread takes the loop;
;;;;   - +COALESCING-NS+ have passed.
;;;; If the sender then does other work for long, a flusher sends the output. It is a reserve thread
;;;; that sends any output that has waited long enough. The flusher starts with a burst, and ends
;;;; after several checks that have found nothing.
;;;;
;;;; Only a thread that has the baton sets COALESCED-NS. It may give up a loop that has output only
;;;; if COALESCED-NS is set. No output is forgotten: a thread that coalesces first sets COALESCED-NS
;;;; and then checks whether there is a flusher; a flusher first announces that it leaves (FLUSHER
;;;; is 0) and then checks COALESCED-NS. Both sides have a full barrier between these two steps.

(in-package #:clgrpc.loop)

(defconstant +single-sends+ 4
  "The number of messages in a row that are written one by one before coalescing begins.")
(defconstant +burst-gap-ns+ 50000
  "The maximum time in nanoseconds between two messages that count as following each other. If
messages are further apart, a write for each message is cheap enough.")
(defconstant +coalescing-ns+ 150000
  "The maximum time in nanoseconds that output waits for more output. The time to wake a thread,
some 50 µs, is not included.")
(defconstant +empty-looks+ 5
  "The number of checks in a row without coalesced output after which the flusher leaves.")

(define-hot run-to-send ((loop event-loop) (function function)) (values t boolean)
  "Do what RUN-NOW does, for a FUNCTION that sends a message, which may be one of many: its output
may be coalesced. Return two values: the value of FUNCTION, and the value of RUN-NOW."
  (call-now loop function #'flush-or-coalesce))

(define-hot flush-or-coalesce ((loop event-loop)) null
  "Send the output of LOOP unless it may wait for the messages that follow. Call this after taking
LOOP and sending a message on it."
  (unless (coalesce-p loop) (flush-phase loop))
  nil)

(define-hot coalesce-p ((loop event-loop)) boolean
  "Note that a message has been sent on LOOP. Return true if the message may wait for the messages
that follow."
  (let* ((driving (driving-of loop))
         (now (event-loop-now loop))
         (since (driving-coalesced-ns driving)))
    (setf (driving-burst driving) (if (< (- now (driving-sent-ns driving)) +burst-gap-ns+)
                                      (1+ (driving-burst driving))
                                      0)
          (driving-sent-ns driving) now)
    (cond ((or (< (driving-burst driving) +single-sends+)
               (zerop (event-loop-dirty-count loop))
               (plusp (event-loop-ready-count loop))
               (plusp (event-loop-ring-count loop))
               (> (driving-calls driving) 1)
               (waited-for-p driving)
               (enough-coalesced-p loop))
           nil)
          ((zerop since) (begin-coalescing loop now))
          (t (< (- now since) +coalescing-ns+)))))

(define-hot enough-coalesced-p ((loop event-loop)) boolean
  (loop for i of-type index below (event-loop-dirty-count loop)
        thereis (let ((connection (svref (event-loop-dirty loop) i)))
                  (declare (type connection connection))
                  (>= (connection-unsent connection) +flush-octets+))))

(define-hot begin-coalescing ((loop event-loop) (now nanoseconds)) boolean
  "Begin at NOW to coalesce the output of LOOP, and return true. Return false if no thread is
available that could send the output later."
  (let ((driving (driving-of loop)))
    (setf (driving-coalesced-ns driving) now)
    (sb-thread:barrier (:memory))
    (or (plusp (driving-flusher driving))
        (plusp (compare-and-swap (driving-flusher driving) 0 1))
        (and (run-on-reserve (event-loop-reserve loop) (lambda () (flush-later loop))
                             :if-busy :exceed)
             t)
        (progn                          ; the reserve is closed, so there is no flusher
          (setf (driving-flusher driving) 0
                (driving-coalesced-ns driving) 0)
          nil))))

(defun flush-later (loop)
  "Send the output that was coalesced on LOOP whenever it has waited long enough, until no output
has been coalesced for a while."
  (let ((driving (driving-of loop)) (empty 0) (pause-ns +coalescing-ns+))
    (declare (type fixnum empty))
    (loop until (await-stop loop (ns-seconds pause-ns))
          do (let* ((since (driving-coalesced-ns driving))
                    (age (- (the nanoseconds (funcall (event-loop-clock loop))) since)))
               (setf pause-ns +coalescing-ns+)
               (cond ((zerop since)
                      (when (and (> (incf empty) +empty-looks+) (leave-flushing-p driving))
                        (return)))
                     (t (setf empty 0)
                        (if (< age +coalescing-ns+)
                            (setf pause-ns (- +coalescing-ns+ age))
                            (send-coalesced loop))))))))

(defun leave-flushing-p (driving)
  "True if this thread, the flusher of the loop of DRIVING, may leave."
  (setf (driving-flusher driving) 0)
  (sb-thread:barrier (:memory))
  (or (zerop (driving-coalesced-ns driving))
      ;; another flusher may have come already
      (plusp (compare-and-swap (driving-flusher driving) 0 1))))

(defun send-coalesced (loop)
  "Send the output that was coalesced on LOOP, unless another thread runs LOOP, because that thread
sends the output then."
  (with-taken-loop (loop (take loop))
    (run-briefly loop (constantly nil) #'flush-phase)))
