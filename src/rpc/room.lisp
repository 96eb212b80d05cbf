;;;; Room for long messages. What is about to be encoded is promised its part of the heap before
;;;; (base/heap.lisp). Who gets no promise waits, in his own thread, for his turn, for as long as
;;;; the option room-wait-seconds says; then the call ends with :resource-exhausted.
;;;;
;;;; Of those who wait one, who has the turn, looks whether there is room now, and collects garbage
;;;; if there is not; the others wait for the turn. Where there is room nobody takes a lock.
;;;;
;;;; A call whose connection has answers waiting for the peer already gets no room from the half of
;;;; the heap that is kept for those who take theirs.

(in-package #:clgrpc.rpc)

(defconstant +long-octets+ 65536
  "Longer messages have their room promised. Shorter ones are bounded by the number of calls.")

(defconstant +room-look-ns+ 4000000
  "How often who has the turn looks for room.")

(defglobal **room-turn** (sb-thread:make-mutex :name "clgrpc room"))

(defun promise-p (call octets)
  (promise-octets octets :reserve-fifths (if (operate crowded call) 2 1)))

(defun ensure-promise (call octets options)
  "Return once OCTETS of the heap are promised for a message of CALL. Signal an RPC-ERROR if CALL
has ended meanwhile, or there is no room in the time that OPTIONS say. In user code: this thread may
sleep."
  (unless (promise-p call octets)
    (unless (and (loop:prepare-to-wait) (await-promise call octets options))
      (refuse-room call octets))))

(defun refuse-room (call octets)
  (error (verdict-error :no-room (list octets) :call call)))

(defun await-promise (call octets options)
  "Wait until OCTETS are promised; false if CALL has ended or they are not in time."
  (let ((end (+ (operate now call) (seconds-ns (options-room-wait-seconds options))))
        (turn nil))
    (flet ((late-p () (or (call-status call) (< end (operate now call)))))
      (unwind-protect
           (loop
             (cond ((late-p) (return nil))
                   (turn
                    (when (promise-p call octets) (return t))
                    (collect-for-room)
                    (when (promise-p call octets) (return t))
                    (sleep (ns-seconds +room-look-ns+)))
                   (t (setf turn (sb-thread:grab-mutex **room-turn** :timeout 0.1)))))
        (when turn (sb-thread:release-mutex **room-turn**))))))

(defun call-with-room (call octets options function)
  "Call FUNCTION, which makes a message of CALL that is OCTETS long, when there is room for it;
OPTIONS say how long to wait for that."
  (declare (type function function))
  (operate note-long-message call octets)
  (ensure-promise call octets options)
  (unwind-protect (funcall function)
    (settle-octets octets)))
