;;;; The engine: a store with a lock, the clock by which its leases end, and the listeners that
;;;; follow its changes (watch-stream.lisp). An engine is a service object with etcd's services:
;;;; call it through a channel within the image, or let a server serve it.
;;;;
;;;; A request holds the lock while it is done; meanwhile it waits for nothing, and runs no code of
;;;; a user. After that the thread that has made a new revision calls, without the lock, the
;;;; listeners that the revision concerns, at most +CALLED-AT-ONCE+ of them. The engine's job calls
;;;; the other listeners one after another. The job also continues the work of a listener that has
;;;; stopped after doing enough at once. Leases end in the course of the next request, or by the
;;;; engine's job. While there are leases or listeners the job checks the clock at least twice a
;;;; second, since a test's clock may jump.

(in-package #:clgrpc.memory)

(defconstant +called-at-once+ 16
  "The maximum number of listeners that the thread which has made a revision calls itself.")

(defclass engine (pb:kv pb:lease pb:watch pb:cluster pb:maintenance)
  ((store :initarg :store :reader engine-store) ; the engine's contents
   ;; the clock of this world is that of the leases
   (world :initform loop:*world* :reader engine-world)
   (max-watches :initarg :max-watches :reader engine-max-watches) ; the most watches of all streams
   ;; the time between notices of progress
   (progress-ns :initarg :progress-ns :reader engine-progress-ns)
   ;; guards the store and all slots below
   (lock :initform (sb-thread:make-mutex :name "clgrpc memory") :reader engine-lock)
   (open :initform t :accessor engine-open) ; false once the engine is closed
   (told :initform 1 :accessor engine-told) ; the revision that the listeners have got
   ;; a set of listeners, each its own value
   (listeners :initform (make-hash-table :test 'eq) :reader engine-listeners)
   (watches :initform nil :accessor engine-watches) ; the tree of all watches
   (serial :initform 0 :accessor engine-serial) ; the number of the watch that was made last
   (calls :initform (make-fifo) :reader engine-calls) ; listeners that the job must call
   (looked :initform 0 :accessor engine-looked) ; when the job last looked at all listeners
   ;; runs work that has no other thread
   (background :initform (loop:make-background "clgrpc memory") :reader engine-background)
   (job :accessor engine-job)           ; the engine's only job
   (attendant :initform nil :accessor engine-attendant)) ; the thread that has run it last, or nil
  (:documentation "A store in memory that serves etcd's services. The store is not durable: its
contents end with its process. Made by MAKE-ENGINE, ended by CLOSE-ENGINE. A program gets a client
by CONNECT; START-SERVER accepts an engine as a service, for other programs, such as etcdctl."))

(defmethod initialize-instance :after ((engine engine) &key)
  (setf (engine-job engine)
        (loop:add-job (engine-background engine) (lambda () (attend-engine engine)))))

(defmethod print-object ((engine engine) stream)
  (print-unreadable-object (engine stream :type t)
    (let ((store (engine-store engine)))
      (format stream "in memory, not durable, revision ~D~:[, closed~;~]" (store-revision store)
              (engine-open engine)))))

(defun make-engine (&key (max-octets 268435456) (max-revisions 10000) (max-leases 100000)
                      (max-watches 10000) (progress-seconds 600))
  "Return a new engine, which is empty. Like etcd, the engine refuses to keep more than MAX-OCTETS,
counting keys, values and 128 octets for each entry. The engine keeps the last MAX-REVISIONS, or up
to a quarter more, and compacts older ones, and also newer ones if it needs the space. The engine
has at most MAX-LEASES and MAX-WATCHES. A stream may have another watch if it has fewer watches than
are free. Watches that request progress get a response about it every PROGRESS-SECONDS. The engine
uses the clock of CLGRPC.LOOP:*WORLD*. The engine is not durable, and logs this fact. From any
thread; end it with CLOSE-ENGINE."
  (check-type progress-seconds (real (0)))
  (check-type max-octets (integer 1))
  (check-type max-revisions (integer 1))
  (check-type max-leases (integer 1))
  (check-type max-watches (integer 1))
  (log-event :warning :memory-engine :durable nil
             :text "The contents of this store are lost when the process ends.")
  (make-instance 'engine
                 :store (make-store (make-limits :octets max-octets :revisions max-revisions
                                                 :leases max-leases))
                 :max-watches max-watches :progress-ns (seconds-ns progress-seconds)))

(defun engine-now (engine)
  "The time by ENGINE's clock."
  (funcall (the function (loop:world-clock (engine-world engine)))))

(defmacro with-engine ((engine) &body body)
  "Evaluate BODY while no other thread uses ENGINE. BODY is not interrupted, because half a revision
would remain if WITH-TIMEOUT unwound a user's thread here."
  `(sb-sys:without-interrupts
     (sb-thread:with-mutex ((engine-lock ,engine)) ,@body)))

(defun engine-revision (engine)
  "Return the revision that ENGINE is at. From any thread."
  (with-engine (engine) (store-revision (engine-store engine))))

(defun call-listener (listener)
  "Call LISTENER. An error in LISTENER does not reach the calling thread."
  (loop:guarding (:memory-listener-error)
    (funcall (the function (listener-function listener)))))

(defun leave-call (engine listener)
  "Make the job of ENGINE, whose lock the caller must hold, call LISTENER."
  (unless (shiftf (listener-called listener) t)
    (enqueue listener (engine-calls engine))
    (loop:wake-job (engine-job engine))))

(defun tell-listeners (engine)
  "Call those listeners of ENGINE that a new change concerns."
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
  "Return the values of FUNCTION for ENGINE's store and the time, or signal its RPC-ERROR."
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
  "Evaluate BODY with STORE bound to the store of ENGINE and NOW to the time, see CALL-ON-STORE."
  `(call-on-store ,engine (lambda (,store ,now) (declare (ignorable ,now)) ,@body)))

;;; The job

(defconstant +tick-ns+ 500000000 "The longest time between two checks of the clock by the job.")

(defun leave-due-calls (engine now)
  "Let the job of ENGINE call the listeners that are due at NOW or have something to send: the
thread that was to call them may have been interrupted. The caller must hold ENGINE's lock."
  (loop for listener being the hash-keys of (engine-listeners engine)
        do (when (or (<= (listener-due-ns listener) now)
                     (fifo-items (listener-ready listener)))
             (leave-call engine listener))))

(defun look-at-clock (engine)
  "End the leases whose time is over by the clock of ENGINE, whose lock the caller must hold."
  (let ((now (engine-now engine)))
    (end-leases (engine-store engine) now)
    ;; the clock may have been set back, too
    (unless (< -1 (- now (engine-looked engine)) +tick-ns+)
      (setf (engine-looked engine) now)
      (leave-due-calls engine now))))

(defun seconds-to-wait (engine)
  "The seconds until ENGINE's job has something to do; nil if the job may wait until it is woken.
The caller must hold ENGINE's lock."
  (let ((look (next-look-ns (engine-store engine))))
    (when (or look (plusp (hash-table-count (engine-listeners engine))))
      (ns-seconds (max 0 (min +tick-ns+ (- (or look most-positive-fixnum)
                                           (engine-now engine))))))))

(defun attend-engine (engine)
  "Run the job of ENGINE once. Return the seconds until the job runs again, or nil."
  (setf (engine-attendant engine) sb-thread:*current-thread*)
  (loop
    (let ((called nil))
      (with-engine (engine)
        (unless (engine-open engine) (return nil))
        (look-at-clock engine)
        (when (setf called (dequeue (engine-calls engine)))
          (setf (listener-called called) nil)))
      (tell-listeners engine)
      (if called
          (call-listener called)
          (with-engine (engine)
            (unless (fifo-items (engine-calls engine))
              (return (seconds-to-wait engine))))))))

(defun add-listener (engine listener)
  "Add LISTENER to ENGINE, which calls it when there are changes for its watches. Refuse LISTENER if
ENGINE is closed."
  (with-engine (engine)
    (unless (engine-open engine) (refuse :closed))
    (setf (gethash listener (engine-listeners engine)) listener))
  (loop:wake-job (engine-job engine)))

(defun remove-listener (engine listener)
  (with-engine (engine) (remhash listener (engine-listeners engine))))

(defun add-watch (engine watch)
  "Add WATCH to the watches of ENGINE, whose lock the caller must hold. Return false if the engine
or WATCH's listener has too many watches: a listener may have another watch if it has fewer watches
than are free."
  (let* ((listener (watch-listener watch))
         (free (- (engine-max-watches engine) (tree-size (engine-watches engine)))))
    (when (< (listener-watch-count listener) free)
      (incf (listener-watch-count listener))
      (setf (engine-watches engine) (tree-with (engine-watches engine) watch))
      t)))

(defun remove-watch (engine watch)
  "Remove WATCH from the watches of ENGINE, whose lock the caller must hold."
  (setf (watch-dropped watch) t
        (engine-watches engine) (tree-without (engine-watches engine) (watch-key watch)))
  (decf (listener-watch-count (watch-listener watch))))

(defun close-engine (engine)
  "End ENGINE, whose calls are refused with :unavailable and whose watches end. ENGINE's contents
are lost. From any thread."
  (mapc #'call-listener
        (with-engine (engine)
          (setf (engine-open engine) nil)
          (loop for listener being the hash-keys of (engine-listeners engine) collect listener)))
  (loop:end-background (engine-background engine)))
