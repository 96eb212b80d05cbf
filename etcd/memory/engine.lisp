;;;; The engine: a store behind a lock, the clock by which its leases end, and those who are to hear
;;;; of its changes (watch.lisp). It is a service object that has etcd's services: call it through a
;;;; channel within the image, or have a server serve it.
;;;;
;;;; A request has the lock while it is done, which takes no waiting and no code of a user's. Then,
;;;; without the lock, the thread that has brought a new revision about has the listeners look at
;;;; it. Leases end in the course of the next request, or by the engine's thread, which there is as
;;;; long as there are leases or listeners. That looks at the clock twice a second at least, since
;;;; the clock of a test may jump.

(in-package #:clgrpc.memory)

(defclass engine (pb:kv pb:lease pb:watch pb:cluster)
  ((store :initarg :store :reader engine-store) ; what is in it
   (world :initform loop:*world* :reader engine-world) ; whose clock is that of the leases
   (max-watches :initarg :max-watches :reader engine-max-watches) ; of a stream
   (progress-ns :initarg :progress-ns :reader engine-progress-ns) ; between notices of progress
   ;; of the store, and of all that follows
   (lock :initform (sb-thread:make-mutex :name "clgrpc memory") :reader engine-lock)
   (bell :initform (sb-thread:make-waitqueue :name "clgrpc memory")
         :reader engine-bell)               ; the thread is to look at the clock
   (open :initform t :accessor engine-open) ; false once it was closed
   (told :initform 1 :accessor engine-told) ; the revision that the listeners were told of
   (listeners :initform '() :accessor engine-listeners) ; a list of functions, never changed
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
MAX-WATCHES at most. Watches that ask for that are told each PROGRESS-SECONDS how far they are. Its
clock is that of CLGRPC.LOOP:*WORLD*. It is not durable, and logs that. From any thread; end it with
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
  "Evaluate BODY while no other thread has ENGINE."
  `(sb-thread:with-mutex ((engine-lock ,engine)) ,@body))

(defun engine-revision (engine)
  "Return the revision that ENGINE is at. From any thread."
  (with-engine (engine) (store-revision (engine-store engine))))

(defun tell-listeners (engine)
  "Have the listeners of ENGINE look, if there is something new."
  (dolist (listener (with-engine (engine)
                      (let ((revision (store-revision (engine-store engine))))
                        (unless (= revision (shiftf (engine-told engine) revision))
                          (engine-listeners engine)))))
    (funcall (the function listener))))

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

(defun run-engine (engine)
  "What the thread of ENGINE does."
  (let ((loop:*world* (engine-world engine)))
    (loop
      (with-engine (engine)
        (let ((store (engine-store engine)))
          (unless (and (engine-open engine)
                       (or (engine-listeners engine) (first-end-ns store)))
            (setf (engine-thread engine) nil)
            (return))
          (loop:await-notice (engine-bell engine) (engine-lock engine)
                             (+ (engine-now engine)
                                (min (seconds-ns 1/2)
                                     (max 0 (- (or (first-end-ns store) most-positive-fixnum)
                                               (engine-now engine))))))
          (end-leases store (engine-now engine))))
      (tell-listeners engine)
      (dolist (listener (engine-listeners engine)) (funcall (the function listener))))))

(defun ensure-thread (engine)
  "See that ENGINE, whose lock is held and which is open, has a thread."
  (unless (engine-thread engine)
    (setf (engine-thread engine) (sb-thread:make-thread #'run-engine :name "clgrpc memory"
                                                                     :arguments (list engine)))))

(defun add-listener (engine listener)
  "Have LISTENER, a function without arguments, called when ENGINE has something new, and now and
then besides. Refuse it if ENGINE is closed."
  (with-engine (engine)
    (unless (engine-open engine) (refuse :closed))
    (push listener (engine-listeners engine))
    (ensure-thread engine)))

(defun remove-listener (engine listener)
  (with-engine (engine)
    (setf (engine-listeners engine) (remove listener (engine-listeners engine)))))

(defun close-engine (engine)
  "End ENGINE: whoever calls it is refused with :unavailable, and its watches end. What is in it is
lost. From any thread."
  (let ((thread nil) (listeners '()))
    (with-engine (engine)
      (setf (engine-open engine) nil
            thread (engine-thread engine)
            listeners (engine-listeners engine))
      (sb-thread:condition-broadcast (engine-bell engine)))
    (dolist (listener listeners) (funcall (the function listener)))
    (when thread (sb-thread:join-thread thread :default nil))
    nil))
