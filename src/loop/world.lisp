;;;; Worlds. A world determines the time and the network of the loops that are made in it, which
;;;; thread runs them, and how a thread starts or waits. The machine is the world of all threads
;;;; unless they bind *WORLD*. The simulator (sim) makes other worlds: in these, one thread at a
;;;; time runs, which the simulator chooses.
;;;;
;;;; A loop and a reserve belong permanently to the world in which they are made. A thread waits by
;;;; the rules of its world, *WORLD*.

(in-package #:clgrpc.loop)

(deftype operation ()
  "A function, or the name of a function."
  '(or symbol function))

(defstruct (network (:copier nil))
  "The sockets of a world, as functions with results like those of the kernel's calls in clgrpc.os:
a result below 0 is a negated errno. A descriptor is any number on which these functions, the byte
channels and the pollers of the world agree."
  (open nil :type operation :read-only t)          ; (family): a descriptor
  (connect nil :type operation :read-only t)       ; (descriptor address)
  (failure nil :type operation :read-only t)       ; (descriptor): a positive errno, or 0
  (listen nil :type operation :read-only t)        ; (address options): a descriptor
  (accept nil :type operation :read-only t)        ; (descriptor octets): a descriptor
  ;; (descriptor): stop new connections to a listening socket that is about to be closed
  (retire 'keep-as-it-is :type operation :read-only t)
  (local-address nil :type operation :read-only t) ; (descriptor): octets, or nil
  (close nil :type operation :read-only t)         ; (descriptor)
  (byte-channel nil :type operation :read-only t)  ; (descriptor peer): a byte channel
  ;; (descriptor seconds): break off a connection whose peer acknowledges no octets for that time
  (limit-silence 'no-limit :type operation :read-only t)
  ;; datagrams, which some networks do not have
  (open-datagram 'no-datagrams :type operation :read-only t) ; (family): a descriptor
  (send 'no-datagrams :type operation :read-only t) ; (descriptor octets start end): how many
  (receive 'no-datagrams :type operation :read-only t) ; (descriptor octets start end): how many
  ;; (host port): a list of addresses; and, if the list is empty, the reason as text
  (resolve nil :type operation :read-only t))

(defun no-limit (descriptor seconds)
  "Do nothing. This is the LIMIT operation of a network that loses no octets."
  (declare (ignore descriptor seconds)))

(defun keep-as-it-is (descriptor)
  "Do nothing. This is the RETIRE operation of a network in which no connection can arrive between
two operations of a thread."
  (declare (ignore descriptor)))

(defun no-datagrams (&rest arguments)
  "Return -EOPNOTSUPP. In a network without datagrams all datagram operations are this function."
  (declare (ignore arguments))
  (- os:+eopnotsupp+))

(defstruct (world (:copier nil))
  "A world, as explained at the head of this file. Only simulated worlds have START-LOOP,
START-THREAD and WAIT. On the machine these functions are nil, because its threads run, start and
sleep by themselves."
  (clock nil :type function :read-only t)          ; (): the time in nanoseconds
  (make-poller nil :type operation :read-only t)   ; (): for a new loop
  (make-random nil :type operation :read-only t)   ; (): a random-state for a new loop
  (network nil :type network :read-only t) ; the network of its sockets
  (start-loop nil :type (or null function) :read-only t) ; a function that runs a loop
  ;; (function name): call FUNCTION in a thread called NAME
  (start-thread nil :type (or null function) :read-only t)
  ;; (predicate end-ns): return true once PREDICATE is true, or, if that is nil, after any event;
  ;; false at END-NS, which may be nil
  (wait nil :type (or null function) :read-only t)
  (client-loops '() :type list))        ; the loops of channels, kept here by the client

(declaim (sb-ext:freeze-type network world))

(document-functions
  make-network "Return a network with these functions; see the type NETWORK."
  make-world "Return a world with these functions; see the type WORLD."
  world-clock "The function that returns the time in WORLD, in nanoseconds."
  world-client-loops "The list of the clients' loops in WORLD; SETF replaces it.")

(defmethod print-object ((world world) stream)
  (print-unreadable-object (world stream :type t :identity t)
    (write-string (if (world-wait world) "simulated" "the machine") stream)))

(declaim (type world *world*))
(defvar *world*)
(setf (documentation '*world* 'variable) "The world that this thread is in.")

(defun simulated-p (&optional (world *world*))
  "True if WORLD is simulated: its threads do not run by themselves."
  (and (world-wait world) t))

(defun unix-seconds ()
  "Return the number of whole seconds since 1970-01-01 00:00 UTC, or nil in a simulated world, which
has no date."
  (if (simulated-p) nil (values (floor (real-time-ns) +ns-per-second+))))

(defun unix-ns ()
  "The time since 1970-01-01 00:00 UTC in nanoseconds; in a simulated world the time of its clock."
  (if (simulated-p) (world-now) (real-time-ns)))

(defun new-random-state ()
  "A new random-state for random choices in the world of this thread; in a simulated world it
depends on the seed."
  (values (funcall (world-make-random *world*))))

(defun world-now ()
  "The time now in the world of this thread, in nanoseconds."
  (funcall (world-clock *world*)))

(defun find-addresses (host port)
  "Return two values: the addresses of HOST, a name or a numeric address, with PORT, in the world of
this thread; and, if there are no addresses, the reason of the failure, as text. The call may wait
for long."
  (funcall (network-resolve (world-network *world*)) host port))

;;; Waiting

(defun world-sleep (seconds)
  "Wait for SECONDS, a real."
  (if (simulated-p)
      (loop with end = (notice-end seconds)
            while (funcall (world-wait *world*) nil end))
      (sleep seconds)))

(defun notice-end (seconds)
  "Return the time that is SECONDS, a real, from now, for the parameter END-NS of AWAIT-NOTICE."
  (time-after (seconds-ns seconds) (world-now)))

(defun seconds-until (end-ns &optional (least 1/1000))
  "Return the number of seconds from now until END-NS, a time that NOTICE-END returned, but at least
LEAST, a real."
  (max least (ns-seconds (max 0 (- end-ns (world-now))))))

(defun await-notice (queue mutex end-ns &optional predicate)
  "Wait on QUEUE for a notice or until END-NS, see NOTICE-END. This thread must hold MUTEX, and
holds it again afterwards. Return false if END-NS has passed. The function may also return although
neither has happened. A simulation does not see notices: it continues when PREDICATE, a function
without effects, is true or, if PREDICATE is nil, after any event."
  (let ((left (- end-ns (world-now))))
    (and (plusp left)
         (cond ((simulated-p)
                (sb-thread:release-mutex mutex)
                (unwind-protect (funcall (world-wait *world*) predicate end-ns)
                  (sb-thread:grab-mutex mutex)))
               ((sb-thread:condition-wait queue mutex :timeout (ns-seconds left)))
               ;; after a time-out the mutex is not held
               (t (sb-thread:grab-mutex mutex)
                  (< (monotonic-ns) end-ns)))
         t)))

(defun await-until (queue mutex end-ns predicate)
  "Wait until PREDICATE, called with MUTEX held, returns true, or until END-NS, see NOTICE-END. Code
that changes a condition of PREDICATE must notify QUEUE. Return the last value of PREDICATE."
  (declare (type function predicate))
  (if (simulated-p)
      (await-in-simulation mutex end-ns predicate)
      (sb-thread:with-mutex (mutex)
        (loop (let ((value (funcall predicate)))
                (when (or value (not (await-notice queue mutex end-ns)))
                  (return value)))))))

(defun await-in-simulation (mutex end-ns predicate)
  "Do what AWAIT-UNTIL does, in a simulation. The simulation calls PREDICATE, in its own thread,
until it returns true or signals an error; then this thread calls it once more."
  (declare (type function predicate))
  (let ((value nil) (failed nil) (world *world*))
    (flet ((look ()
             (or value
                 failed
                 (and (null (sb-thread:mutex-owner mutex))
                      (let ((*world* world))
                        (handler-case (setf value (sb-thread:with-mutex (mutex)
                                                    (funcall predicate)))
                          (error () (setf failed t))))))))
      (loop
        (let ((value (or value (sb-thread:with-mutex (mutex) (funcall predicate)))))
          (when value (return value)))
        (setf failed nil)
        (unless (or (and (< (world-now) end-ns) (funcall (world-wait *world*) #'look end-ns))
                    value
                    failed)
          (return (sb-thread:with-mutex (mutex) (funcall predicate))))))))

(defconstant +forever-seconds+ 1000000000
  "The maximum time of a wait in seconds, thirty years. SBCL does not accept a time-out of many
centuries.")

(defun await-semaphore (semaphore &key (count 1) timeout-seconds)
  "Wait until SEMAPHORE can be lowered by COUNT, and lower it. Return false after TIMEOUT-SECONDS,
unless this is nil."
  (if (simulated-p)
      (and (funcall (world-wait *world*)
                    (lambda () (<= count (sb-thread:semaphore-count semaphore)))
                    (and timeout-seconds (notice-end timeout-seconds)))
           (sb-thread:try-semaphore semaphore count))
      (cond ((null timeout-seconds) (sb-thread:wait-on-semaphore semaphore :n count))
            ((plusp timeout-seconds)
             (sb-thread:wait-on-semaphore semaphore
                                          :n count :timeout (min timeout-seconds
                                                                 +forever-seconds+)))
            ;; SBCL takes no time-out of 0 either
            (t (sb-thread:try-semaphore semaphore count)))))

(defun await-futex (futex value)
  "Sleep while FUTEX has VALUE, or for a shorter time."
  (declare (type os:futex futex))
  (if (simulated-p)
      (funcall (world-wait *world*) (lambda () (/= value (aref futex 0))) nil)
      (os:wait-for-futex futex value))
  nil)

(defun end-thread (thread)
  "Wait for the end of THREAD, which is about to end; return at once if it is NIL. Return true."
  (when (and thread (not (simulated-p))) (sb-thread:join-thread thread :default nil))
  t)
