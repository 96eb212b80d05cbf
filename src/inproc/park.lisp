;;;; Waiting. A thread that waits spins for a moment first, if there is another processor for the
;;;; other end: to wake a thread that sleeps takes 30 µs, while one that spins sees a message after
;;;; 0.1 µs. A client whose handler runs on a loop drives that loop while it waits, if no other
;;;; thread does and the handler does not wait for anything that the client would do (DRIVABLE-P).

(in-package #:clgrpc.inproc)

(defconstant +spins+ 1000 "How often a waiting thread looks before it sleeps.")

(defconstant +yields+ 20
  "The same with a single processor, where other threads run between the looks.")

(declaim (type fixnum **processors**))

(defglobal **processors** 0)

(defun count-processors ()
  "Look how many processors there are for us."
  (setf **processors** (max 1 (floor (os:processor-limit)))))

(define-hot processors () fixnum
  (if (zerop **processors**)
      (the fixnum (count-processors))
      **processors**))

(define-hot inproc-park ((call inproc-call) (ready-p function)) t
  "The operation PARK."
  (let ((line (call-line call)))
    (when (and (line-eager line) (not (rpc:client-p call))
               (eq (line-phase line) sb-thread:*current-thread*))
      (setf (route-kept (line-route line)) nil)
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
    (register line)
    (rpc:park call ready-p)))

(defun client-park (call ready-p)
  "The operation PARK of a client: if the handler runs on a loop, another thread must run that."
  (let ((execution (site-execution (call-site call))))
    (if (loop-p execution)
        (loop:call-served execution (lambda () (inproc-park call ready-p)) nil)
        (inproc-park call ready-p))))

(defun client-drive (call ready-p)
  "The operation DRIVE of a client. A handler that has not begun begins in the first turn."
  (declare (type function ready-p))
  (let ((event-loop (site-execution (call-site call)))
        (line (call-line call)))
    (when (loop-p event-loop)
      (or (and (drivable-p line) (null (call-status call)) (drive-loop line event-loop ready-p))
          (begin-elsewhere line)))))

(defun drive-loop (line event-loop ready-p)
  "Run EVENT-LOOP on this thread, that of LINE's client, until READY-P is true or the call has
ended, if this thread may."
  (declare (type function ready-p))
  (enter-loop line event-loop)
  (with-undoing ((setf (line-driver line) sb-thread:*current-thread*)
                 (setf (line-driver line) nil))
    (flet ((ready-p (call)
             (begin-driven line event-loop)
             (funcall ready-p call)))
      (declare (dynamic-extent #'ready-p))
      (calling:drive-for event-loop (line-client line) #'ready-p))))

(defun no-drive (call ready-p)
  (declare (ignore call ready-p))
  nil)
