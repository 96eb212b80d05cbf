;;;; The engine: a store behind a lock, the clock by which its leases end, and those who are to hear
;;;; of its changes (watch.lisp). It is a service object that has etcd's services: call it through a
;;;; channel within the image, or have a server serve it.
;;;;
;;;; A request has the lock while it is done, which takes no waiting and no code of a user's. Then,
;;;; without the lock, the thread that has brought a new revision about has listeners look at it:
;;;; those that it concerns, +CALLED-AT-ONCE+ of them at most. The others, and what a listener
;;;; leaves since it has done enough in one go, are left to the engine's thread, in turn. That is
;;;; there as long as there are leases or listeners. Leases end in the course of the next request,
;;;; or by that thread. It looks at the clock twice a second at least, since a test's may jump.

(in-package #:clgrpc.memory)

(defconstant +called-at-once+ 16
  "So many listeners the thread that has made a revision calls itself.")

(defclass engine (pb:kv pb:lease pb:watch pb:cluster)
  ((store :initarg :store :reader engine-store) ; what is in it
   (world :initform loop:*world* :reader engine-world) ; whose clock is that of the leases
   (max-watches :initarg :max-watches :reader engine-max-watches) ; of all streams
   (progress-ns :initarg :progress-ns :reader engine-progress-ns) ; between notices of progress
   ;; of the store, and of all that follows
   (lock :initform (sb-thread:make-mutex :name "clgrpc memory") :reader engine-lock)
   (bell :initform (sb-thread:make-waitqueue :name "clgrpc memory")
         :reader engine-bell)               ; the thread is to look at the clock
   (open :initform t :accessor engine-open) ; false once it was closed
   (told :initform 1 :accessor engine-told) ; the revision that the listeners were told of
   (listeners :initform (make-hash-table :test 'eq) :reader engine-listeners) ; each its own value
  (watches :initform nil :accessor engine-watches) ; the tree of all watches
  (serial :initform 0 :accessor engine-serial) ; of the watch that was made last
  (calls :initform (make-fifo) :reader engine-calls) ; listeners that the thread is to call
   (thread :initform nil :accessor engine-thread)) ; or nil
  (:documentation "A store in memory that serves etcd's services. It is not durable: what it has is
gone when its process ends. Made by MAKE-ENGINE, ended by CLOSE-ENGINE. A program gets a client by
CONNECT; START-SERVER takes an engine as a service, for other programs, etcdctl among them."))

(defmethod print-object ((engine engine) stream)
  (print-unreadable-object (engine stream :type t)
    (let ((store (engine-store engine)))
      (format stream "in memory, not durable, revision ~D~:[, closed~;~]" (store-revision store)
              (engine-open engine)))))

(defun make-engine (&key (max-octets 268435456) (max-revisions 10000) (max-leases 100000)
                      (max-watches 10000) (progress-seconds 600))
  "Return a new engine, which is empty. It refuses, as etcd does when it is full, to keep more than
MAX-OCTETS, of keys, values and 128 for each; it keeps the last MAX-REVISIONS, or up to a quarter
more, and compacts what is older, or all but the newest if it needs the room. It has MAX-LEASES and
MAX-WATCHES at most; a stream may have another watch if it has fewer than are free. Watches that
ask for that are told each PROGRESS-SECONDS how far they are. Its clock is that of
CLGRPC.LOOP:*WORLD*. It is not durable, and logs that. From any thread; end it with
CLOSE-ENGINE."
  (check-type progress-seconds (real (0)))
  (check-type max-octets (integer 1))
  (check-type max-revisions (integer 1))
  (check-type max-leases (integer 1))
  (check-type max-watches (integer 1))
  (log-event :warning :memory-engine :durable nil
                      :text "What is in this store is lost when the process ends.")
  (make-instance 'engine
                 :store (make-store (make-limits :octets max-octets :revisions max-revisions
                                                 :leases max-leases))
                 :max-watches max-watches :progress-ns (seconds-ns progress-seconds)))

(defun engine-now (engine)
  "The time by ENGINE's clock."
  (funcall (the function (loop:world-clock (engine-world engine)))))

(defmacro with-engine ((engine) &body body)
  "Evaluate BODY while no other thread has ENGINE. It is not interrupted: a user's thread may be
left by WITH-TIMEOUT, and half a revision would stay."
  `(sb-sys:without-interrupts
     (sb-thread:with-mutex ((engine-lock ,engine)) ,@body)))

(defun engine-revision (engine)
  "Return the revision that ENGINE is at. From any thread."
  (with-engine (engine) (store-revision (engine-store engine))))

(defun call-listener (listener)
  "Have LISTENER look. An error in that is its own, not that of the thread which calls it."
  (loop:guarding (:memory-listener-error)
    (funcall (the function (listener-function listener)))))

(defun leave-call (engine listener)
  "Leave it to the thread of ENGINE, whose lock is held, to call LISTENER."
  (unless (shiftf (listener-called listener) t)
    (enqueue listener (engine-calls engine))
    (when (engine-open engine) (ensure-thread engine))
    (sb-thread:condition-broadcast (engine-bell engine))))

(defun tell-listeners (engine)
  "Have those listeners of ENGINE look that something new concerns."
  (let ((concerned (with-engine (engine)
                     (let* ((store (engine-store engine))
                            (told (shiftf (engine-told engine) (store-revision store)))
                            (concerned (note-changes (engine-watches engine) store (1+ told))))
                       (dolist (listener (nthcdr +called-at-once+ concerned))
                         (leave-call engine listener))
                       concerned))))
    (loop repeat +called-at-once+
          for listener in concerned
          do (call-listener listener))))

(defun call-on-store (engine function)
  "Return what FUNCTION returns of ENGINE's store and the time, or signal the RPC-ERROR that it
does."
  (declare (type function function))
  (let ((outcome (with-engine (engine)
                   (handler-case
                       (let ((now (engine-now engine)))
                         (unless (engine-open engine) (refuse :closed))
                         (end-leases (engine-store engine) now)
                         (funcall function (engine-store engine) now))
                     (status:rpc-error (error) error)))))
    (tell-listeners engine)
    (if (typep outcome 'status:rpc-error) (error outcome) outcome)))

(defmacro on-store ((engine store &optional (now (gensym "NOW"))) &body body)
  "Evaluate BODY with STORE bound to that of ENGINE and NOW to the time, see CALL-ON-STORE."
  `(call-on-store ,engine (lambda (,store ,now) (declare (ignorable ,now)) ,@body)))

;;; The thread

(defconstant +tick-ns+ 500000000 "The thread looks at the clock at least this often.")

(defun leave-due-calls (engine now)
  "Leave to the thread of ENGINE, whose lock is held, to call the listeners that are due at NOW, or
have something to tell: the thread that was to call them may have been interrupted."
  (loop for listener being the hash-keys of (engine-listeners engine)
        do (when (or (<= (listener-due-ns listener) now)
                     (fifo-items (listener-ready listener)))
             (leave-call engine listener))))

(defun await-event (engine)
  "Wait until something is to be done by the thread of ENGINE, whose lock is held, or the clock is
to be looked at."
  (let ((now (engine-now engine)) (first (first-end-ns (engine-store engine))))
    (loop:await-notice (engine-bell engine) (engine-lock engine)
                       (+ now (max 0 (min +tick-ns+ (- (or first most-positive-fixnum) now)))))))

(defun run-engine (engine)
  "What the thread of ENGINE does."
  (let ((loop:*world* (engine-world engine)) (looked 0))
    (loop
      (let ((called nil))
        (with-engine (engine)
          (let ((store (engine-store engine)) (calls (engine-calls engine)))
            (unless (and (engine-open engine)
                         (or (fifo-items calls)
                             (plusp (hash-table-count (engine-listeners engine)))
                             (plusp (hash-table-count (store-leases store)))))
              (setf (engine-thread engine) nil)
              (return))
            (unless (fifo-items calls) (await-event engine))
            (let ((now (engine-now engine)))
              (end-leases store now)
              ;; it may have been set back, too
              (unless (< -1 (- now looked) +tick-ns+)
                (setf looked now)
                (leave-due-calls engine now)))
            (when (setf called (dequeue calls))
              (setf (listener-called called) nil))))
        (tell-listeners engine)
        (when called (call-listener called))))))

(defun ensure-thread (engine)
  "See that ENGINE, whose lock is held and which is open, has a thread."
  (unless (engine-thread engine)
    (setf (engine-thread engine) (sb-thread:make-thread #'run-engine :name "clgrpc memory"
                                                                     :arguments (list engine)))))

(defun add-listener (engine listener)
  "Have LISTENER called when ENGINE has something new for its watches. Refuse it if that is closed."
  (with-engine (engine)
    (unless (engine-open engine) (refuse :closed))
    (setf (gethash listener (engine-listeners engine)) listener)
    (ensure-thread engine)))

(defun remove-listener (engine listener)
  (with-engine (engine) (remhash listener (engine-listeners engine))))

(defun add-watch (engine watch)
  "Have WATCH among those of ENGINE, whose lock is held. Return false if there are too many, or too
many of its listener: that may have another one if it has fewer than are free."
  (let* ((listener (watch-listener watch))
         (free (- (engine-max-watches engine) (tree-size (engine-watches engine)))))
    (when (< (listener-watch-count listener) free)
      (incf (listener-watch-count listener))
      (setf (engine-watches engine) (tree-with (engine-watches engine) watch))
      t)))

(defun remove-watch (engine watch)
  "WATCH, which is among those of ENGINE, is not any more. Its lock is held."
  (setf (watch-dropped watch) t
        (engine-watches engine) (tree-without (engine-watches engine) (watch-key watch)))
  (decf (listener-watch-count (watch-listener watch))))

(defun close-engine (engine)
  "End ENGINE: whoever calls it is refused with :unavailable, and its watches end. What is in it is
lost. From any thread."
  (let ((thread nil) (listeners '()))
    (with-engine (engine)
      (setf (engine-open engine) nil
            thread (engine-thread engine)
            listeners (loop for listener being the hash-keys of (engine-listeners engine)
                            collect listener))
      (sb-thread:condition-broadcast (engine-bell engine)))
    (mapc #'call-listener listeners)
    (when thread (sb-thread:join-thread thread :default nil))
    nil))
