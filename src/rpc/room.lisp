;;;; Room for long messages. Before a thread encodes or decodes a long message it gets a promise for
;;;; octets of the heap (base/memory/heap.lisp). Without a promise the thread waits, at most for the
;;;; option room-wait-seconds; then the call ends with :resource-exhausted.
;;;;
;;;; One waiting thread has the turn, **ROOM-TURN**. That thread checks for room again and again,
;;;; and collects garbage if the heap has no room; the other threads wait for their turn. If the
;;;; heap has room at once, no thread takes a lock.
;;;;
;;;; A thread that waits for room must not hold much for which other threads wait, or threads would
;;;; wait for each other. So it gives back the room for its answer and the turn that all peers share
;;;; for compressed messages (LOOP:CALL-RELEASING), and takes both again afterwards.
;;;;
;;;; Part of the heap is reserved for peers that receive their answers: a call whose connection
;;;; already has waiting answers gets a promise only while two fifths of the heap are free, another
;;;; call while one fifth is free.

(in-package #:clgrpc.rpc)

(defconstant +long-octets+ 65536
  "The maximum length, in octets, of a message for which no room in the heap is promised, because
the number of calls bounds the memory of such messages.")

(defconstant +room-look-ns+ 4000000
  "The interval, in nanoseconds, at which the thread that has the turn looks for room.")

(defglobal **room-turn** (sb-thread:make-mutex :name "clgrpc room"))

(defun promise-p (call octets received)
  (if received
      (promise-octets octets :copied t)
      (promise-octets octets :reserve-fifths (if (operate crowded call) 2 1))))

(defun ensure-promise (call octets options received)
  "Return once OCTETS of the heap are promised for a message of CALL; RECEIVED is as for
CALL-WITH-ROOM. Signal an RPC-ERROR if CALL ends before there is room, or if there is no room within
the room-wait-seconds of OPTIONS. Call this in user code, since the thread may sleep."
  (unless (promise-p call octets received)
    (let ((found nil) (kept nil))
      (flet ((wait () (setf found (await-promise call octets options received))))
        (unwind-protect
             (setf kept (loop:prepare-to-wait #'wait))
          ;; the thread could not take again what it had released
          (when (and found (not kept)) (settle-octets octets))))
      (unless kept (refuse-room call octets received)))))

(defun refuse-room (call octets received)
  (error (if received
             (verdict-error :no-room-in-heap (list received) :call call)
             (verdict-error :no-room (list octets) :call call))))

(defun await-promise (call octets options received)
  "Wait until OCTETS are promised for CALL, and return true; return false if CALL ends or the time
has passed."
  (let ((end (+ (operate now call) (seconds-ns (options-room-wait-seconds options))))
        (turn nil))
    (flet ((late-p ()
             (or (< end (operate now call))
                 ;; a client decodes the last messages of a call that has ended well
                 (and (call-status call) (not (and received (eq :ok (call-status call))))))))
      (unwind-protect
           (loop
             (cond ((late-p) (return nil))
                   (turn
                    (when (promise-p call octets received) (return t))
                    (collect-for-room)
                    (when (promise-p call octets received) (return t))
                    (sb-sys:with-interrupts (loop:world-sleep (ns-seconds +room-look-ns+))))
                   (t (setf turn (sb-thread:grab-mutex **room-turn** :timeout 0.1)))))
        (when turn (sb-thread:release-mutex **room-turn**))))))

(defun call-promised (held function)
  "Call FUNCTION, user code that makes an answer. The first element of the list HELD is the number
of octets promised for FUNCTION. While this thread waits for room for another message, such as a
request that it decodes, that number is 0 and nothing is promised. If there is no room for the
promise afterwards, the number remains 0."
  (let ((octets (first held)))
    (loop:call-releasing
     (lambda () (settle-octets (shiftf (first held) 0)))
     (lambda () (when (promise-octets octets) (setf (first held) octets)))
     function)))

(defun call-with-room (call octets options function &key (long octets) received answer promised)
  "Wait for room, at most as long as OPTIONS allow; then call FUNCTION, which uses OCTETS of the
heap to make a message of CALL. LONG, a number of octets or nil, is the message's length, a hint for
later calls of the method. RECEIVED is nil, or the length of the received message that FUNCTION
decodes. ANSWER is true if FUNCTION is user code, see CALL-PROMISED. PROMISED is true if the OCTETS
are promised already."
  (declare (type function function))
  (when long (operate note-long-message call long))
  (let ((held (list (if promised octets 0))))
    (declare (dynamic-extent held))
    (with-undoing (nil (settle-octets (first held)))
      (unless promised
        (sb-sys:without-interrupts      ; except while the thread waits
          (sb-sys:allow-with-interrupts (ensure-promise call octets options received))
          (setf (first held) octets)))
      (if answer (call-promised held function) (funcall function)))))
