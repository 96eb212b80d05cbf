;;;; Waiting. A thread that waits spins for a moment first, if there is another processor for the
;;;; other end: waking a sleeping thread takes 30 µs, while a spinning thread sees a message after
;;;; 0.1 µs. A client whose handler runs on a loop drives that loop while it waits, if no other
;;;; thread does and the handler does not wait for an action of the client (DRIVABLE-P).

(in-package #:clgrpc.inproc)

(defconstant +spins+ 1000 "How many times a waiting thread looks for an event before it sleeps.")

(defconstant +yields+ 20
  "How many times a waiting thread looks for an event before it sleeps, on a machine with a single
processor, where other threads run between the checks.")

(declaim (type fixnum **processors**))

(defglobal **processors** 0)

(defun count-processors ()
  "Count the processors that this process may use."
  (setf **processors** (max 1 (floor (os:processor-limit)))))

(define-hot processors () fixnum
  (if (zerop **processors**)
      (the fixnum (count-processors))
      **processors**))

(define-hot inproc-park ((call inproc-call) (ready-p function)) t
  "The operation PARK."
  (let ((call-pair (call-call-pair call)))
    (when (and (call-pair-eager call-pair) (not (rpc:client-p call))
               (eq (call-pair-phase call-pair) sb-thread:*current-thread*))
      (setf (route-kept (call-pair-route call-pair)) nil)
      (error (rpc:verdict-error :waits-for-its-caller '() :call call)))
    (macrolet ((look-for (count between)
                 `(loop repeat ,count
                        do (let ((answer (funcall ready-p call)))
                             (when (or answer (call-status call))
                               (return-from inproc-park answer)))
                           ,between)))
      (if (> (processors) 1)
          (look-for +spins+ (sb-ext:spin-loop-hint))
          (look-for +yields+ (sb-thread:thread-yield))))
    (register call-pair)
    (rpc:park call ready-p)))

(defun inproc-client-park (call ready-p)
  "The operation PARK of a client. If the handler runs on a loop, another thread must run that
loop."
  (let ((execution (inproc-core-execution (call-inproc-core call))))
    (if (loop-p execution)
        (loop:call-served execution (lambda () (inproc-park call ready-p)) nil)
        (inproc-park call ready-p))))

(defun inproc-drive (call ready-p)
  "The operation DRIVE of a client. A handler that has not begun begins in the first turn."
  (declare (type function ready-p))
  (let ((event-loop (inproc-core-execution (call-inproc-core call)))
        (call-pair (call-call-pair call)))
    (when (loop-p event-loop)
      (or (and (drivable-p call-pair) (null (call-status call))
               (drive-loop call-pair event-loop ready-p))
          (begin-elsewhere call-pair)))))

(defun drive-loop (call-pair event-loop ready-p)
  "Run EVENT-LOOP on this thread, the thread of CALL-PAIR's client, until READY-P is true or the
call has ended; do nothing if this thread must not run the loop."
  (declare (type function ready-p))
  (enter-loop call-pair event-loop)
  (with-undoing ((setf (call-pair-driver call-pair) sb-thread:*current-thread*)
                 (setf (call-pair-driver call-pair) nil))
    (flet ((ready-p (call)
             (begin-driven call-pair event-loop)
             (funcall ready-p call)))
      (declare (dynamic-extent #'ready-p))
      (calling:drive-for event-loop (call-pair-client call-pair) #'ready-p))))

(defun no-drive (call ready-p)
  (declare (ignore call ready-p))
  nil)
