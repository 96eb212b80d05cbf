;;;; Room for long messages. A thread that is about to encode one has its octets of the heap
;;;; promised first (base/memory/heap.lisp). A thread that gets no promise waits, for as long as the
;;;; option room-wait-seconds says; then the call ends with :resource-exhausted.
;;;;
;;;; One of the threads that wait has the turn, **ROOM-TURN**. It looks for room again and again,
;;;; and collects garbage when there is none; the others wait for the turn. Where there is room at
;;;; once no thread takes a lock.
;;;;
;;;; Part of the heap is reserved for peers that take their answers: a call whose connection already
;;;; has answers waiting gets a promise only while two fifths are free, other calls while one is.

(in-package #:clgrpc.rpc)

(defconstant +long-octets+ 65536
  "Longer messages have their room promised. Shorter ones are bounded by the number of calls.")

(defconstant +room-look-ns+ 4000000
  "How often the thread that has the turn looks for room.")

(defglobal **room-turn** (sb-thread:make-mutex :name "clgrpc room"))

(defun promise-p (call octets)
  (promise-octets octets :reserve-fifths (if (operate crowded call) 2 1)))

(defun ensure-promise (call octets options)
  "Return once OCTETS of the heap are promised for a message of CALL. Signal an RPC-ERROR if CALL
ends before that, or if there is no room within the room-wait-seconds of OPTIONS. This thread may
sleep: call it in user code."
  (unless (promise-p call octets)
    (unless (and (loop:prepare-to-wait) (await-promise call octets options))
      (refuse-room call octets))))

(defun refuse-room (call octets)
  (error (verdict-error :no-room (list octets) :call call)))

(defun await-promise (call octets options)
  "Wait until OCTETS are promised for CALL and return true; false if CALL ends or time runs out."
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
                    (sb-sys:with-interrupts (loop:world-sleep (ns-seconds +room-look-ns+))))
                   (t (setf turn (sb-thread:grab-mutex **room-turn** :timeout 0.1)))))
        (when turn (sb-thread:release-mutex **room-turn**))))))

(defun call-with-room (call octets options function &key (long octets))
  "Wait for room, for as long as OPTIONS say; then call FUNCTION, which takes OCTETS of the heap to
make a message of CALL: one that counts as LONG octets for the calls of its method to come, unless
that is nil."
  (declare (type function function))
  (when long (operate note-long-message call long))
  (let ((promised nil))
    (with-undoing (nil (when promised (settle-octets octets)))
      (sb-sys:without-interrupts        ; but where it waits
        (sb-sys:allow-with-interrupts (ensure-promise call octets options))
        (setf promised t))
      (funcall function))))
