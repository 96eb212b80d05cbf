;;;; The operations of both ends, waiting, and callbacks.
;;;;
;;;; Who waits spins for a moment first, if there is another processor for the other end to run on:
;;;; a thread that sleeps is woken after 30 µs, one that spins sees what came after a tenth of one.
;;;; A client whose handler runs on a loop drives that while it waits, if nobody else runs it and
;;;; the handler waits for nothing that the client would do (DRIVABLE-P).
;;;;
;;;; Callbacks run on the thread of whoever caused what they are for, those of one end one at a
;;;; time: SCHEDULED is true while they run, and :again if something has happened since they were
;;;; looked for. Of a channel whose handlers run on a loop they run there.

(in-package #:clgrpc.inproc)

;;; Waiting

(defconstant +spins+ 1000 "How often a waiting thread looks before it sleeps.")
(defconstant +yields+ 20 "The same where there is but one processor, letting others run between.")

(declaim (type fixnum **processors**))
(defglobal **processors** 0)

(define-hot processors () fixnum
  (if (zerop **processors**)
      (setf **processors** (os:processor-count))
      **processors**))

(define-hot inproc-park ((call inproc-call) (ready-p function)) t
  "The operation PARK."
  (let ((line (call-line call)))
    (when (and (line-eager line) (not (rpc:client-p call))
               (eq (line-phase line) sb-thread:*current-thread*))
      (setf (route-kept (line-route line)) nil)
      (error (rpc:make-rpc-error
              :resource-exhausted :call call :ended-by :local
              :message "the handler would wait for its own caller, who does not wait for it")))
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
  "The operation PARK of a client: somebody else must run the loop that the handler runs on."
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
  "Have this thread, that of LINE's client, run EVENT-LOOP until READY-P or the end, if it may."
  (declare (type function ready-p))
  (enter-loop line event-loop)
  (setf (line-driver line) sb-thread:*current-thread*)
  (unwind-protect
       (flet ((ready-p (call)
                (begin-driven line event-loop)
                (funcall ready-p call)))
         (declare (dynamic-extent #'ready-p))
         (rpc:drive-for event-loop (line-client line) #'ready-p))
    (setf (line-driver line) nil)))

(defun no-drive (call ready-p)
  (declare (ignore call ready-p))
  nil)

;;; Callbacks

(define-hot run-callback ((call inproc-call) (function function) message) null
  "Run FUNCTION, user code of CALL, with MESSAGE unless that is nil; an error in it ends CALL. The
context is clean."
  (let ((condition (with-user-code (call)
                     (if message (funcall function message) (funcall function)))))
    (when condition
      (operate abort call (rpc:rpc-error-status condition) (rpc:rpc-error-message condition)
               :local)))
  nil)

(define-hot callback-message ((call inproc-call) (reactions rpc:reactions)) t
  "The message of CALL that is to be given to its callback, or nil. If only the lack of room for
answers is against it, whoever makes room says so."
  (and (rpc:reactions-on-message reactions)
       (or (rpc:call-received call) (rpc:call-incoming call) (mail-for call))
       (rpc:deliverable-p call)
       (or (rpc:client-p call)
           (room-left-p call)
           (progn (note-waiting call) (room-left-p call)))
       (next-message call)))

(define-hot queue-ready ((line line) (inlet rpc:inlet)) null
  "Put what is ready for the handler of LINE before all that is queued, since callbacks look there."
  (loop for message in (reverse (shiftf (line-ready line) '()))
        do (setf (rpc:inlet-received inlet)
                 (rpc:make-arrival :item message :next (rpc:inlet-received inlet))))
  nil)

(define-hot queue-mail ((call inproc-call) (inlet rpc:inlet)) null
  "Put the mail of CALL where callbacks look: behind what was received."
  (let ((arrival (rpc:make-arrival :item (shiftf (svref (mail call) +mail+) nil)))
        (last (loop for arrival = (rpc:inlet-received inlet) then (rpc:arrival-next arrival)
                    while arrival
                    unless (rpc:arrival-next arrival) return arrival)))
    (if last
        (setf (rpc:arrival-next last) arrival)
        (setf (rpc:inlet-received inlet) arrival)))
  nil)

(define-hot run-next-callback ((call inproc-call) (reactions rpc:reactions)) boolean
  "Run the callback of CALL that is due, or return false if none is."
  (let ((line (call-line call)))
    (when (and (line-ready line) (not (rpc:client-p call)))
      (queue-ready line (rpc:ensure-inlet call))))
  (let* ((over (or (call-status call) (call-half-closed call))) ; before looking for messages
         (message (progn (sb-thread:barrier (:read))
                         (callback-message call reactions))))
    (cond (message
           (run-callback call (the function (rpc:reactions-on-message reactions)) message)
           t)
          (t
           ;; what has been received is asked of the queue; without a callback for messages, the
           ;; mail is for the thread that receives
           (when (and (rpc:reactions-on-message reactions) (mail-for call))
             (queue-mail call (rpc:ensure-inlet call)))
           (let ((function (if over
                               (rpc:due-callback call reactions)
                               (and (rpc:reactions-on-writable reactions)
                                    (rpc:due-on-writable call reactions)))))
             (when function
               (run-callback call function nil)
               t))))))

(define-hot run-due ((call inproc-call) &optional (message t nil)) null
  "Run the callbacks of CALL that are due, before them that for MESSAGE unless that is nil.
SCHEDULED is this thread's."
  (let ((reactions (rpc:ensure-reactions call))
        (done nil))
    (unwind-protect
         (with-clean-context ()
           (loop
             (when message
               (run-callback call (the function (rpc:reactions-on-message reactions))
                             (shiftf message nil)))
             (loop while (run-next-callback call reactions))
             (when (eq t (compare-and-swap (rpc:reactions-scheduled reactions) t nil))
               (setf done t)
               (return))
             (setf (rpc:reactions-scheduled reactions) t)
             ;; who has seen :again before that leaves what has come to this look
             (sb-thread:barrier (:memory))))
      (unless done
        (setf (rpc:reactions-scheduled reactions) nil)
        (operate abort call :internal "callback left by a non-local exit" :local))))
  nil)

(defun run-due-on-loop (call)
  (loop:call-user (site-execution (call-site call)) #'run-due call))

(define-hot schedule ((call inproc-call)) null
  "The operation SCHEDULE."
  (let ((reactions (rpc:ensure-reactions call))
        (execution (site-execution (call-site call))))
    (when (rpc:client-p call) (begin-for-callbacks call reactions))
    (loop
      (ecase (rpc:reactions-scheduled reactions)
        ((nil)
         (when (null (compare-and-swap (rpc:reactions-scheduled reactions) nil t))
           (return
             (if (loop-p execution)
                 (unless (loop:post execution
                                    (lambda () (loop:defer execution #'run-due-on-loop call)))
                   (run-due call))
                 (run-due call)))))
        ((t)
         (when (eq t (compare-and-swap (rpc:reactions-scheduled reactions) t :again)) (return)))
        (:again (return)))))
  nil)

(define-hot begin-for-callbacks ((call inproc-call) (reactions rpc:reactions)) null
  "A client that gives callbacks for what comes waits for its handler, though not here."
  (let ((line (call-line call)))
    (when (and (eq :waiting (line-phase line))
               (or (rpc:reactions-on-message reactions) (rpc:reactions-on-half-close reactions)
                   (call-half-closed (line-server line))))
      (begin-soon line)))
  nil)

;;; What handlers do

(defun server-send-metadata (call metadata)
  "The operation SEND-METADATA of a handler."
  (let ((client (line-client (call-line call))))
    (when (call-fields client) (misuse "The headers of ~A were sent before." call))
    (setf (call-fields client) (rpc:metadata-entries metadata))
    (notify client)))

(defun server-reply (call message)
  "The operation REPLY."
  (answer (call-line call) message))

(defun server-finish (call status message details trailers)
  "The operation FINISH."
  (let ((line (call-line call)))
    (if (and (eq :ok status) (answers-once-p call))
        (end-line line '(:unimplemented :message "the server sent no response message")
                  '(:ok :ended-by :local) (append (own-trailers line) trailers))
        (end-as line status message details trailers))))

(defun server-abort (call status text ended-by)
  "The operation ABORT of a handler."
  (declare (ignore ended-by))
  (end-by-server (call-line call) status text))

(defun server-close-send (call)
  (misuse "~A ends when its handler returns, or with FINISH; CLOSE-SEND is for clients." call))

;;; What clients do

(defun client-abort (call status text ended-by)
  "The operation ABORT of a client."
  (declare (ignore ended-by))
  (unless (call-status call) (end-by-client (call-line call) status text)))

(defun client-leave (call)
  "The operation LEAVE of a client."
  (unless (call-status call)
    (end-by-client (call-line call) :cancelled "the caller has lost interest")))

(defun client-await-metadata (call)
  "The operation AWAIT-METADATA of a client."
  (let ((line (call-line call)))
    (when (eq :waiting (line-phase line)) (begin-soon line))
    (rpc:wait-for-call call #'call-fields)))

;;; What both do

(defun run-here (call function)
  "The operation POST."
  (declare (ignore call))
  (funcall (the function function))
  t)

(defun run-after (call seconds function)
  "The operation AFTER."
  (let ((site (call-site call)))
    (flet ((run ()
             (unless (call-status call)
               (with-clean-context () (run-callback call function nil)))))
      (let ((timer (make-timer (lambda (call)
                                 (unless (call-status call) (run-aside site #'run)))
                               call)))
        (sb-ext:atomic-push timer (rpc:reactions-timers (rpc:ensure-reactions call)))
        (run-timer site timer (rpc:deadline-in (seconds-ns seconds) (site-now site)))
        ;; it may have ended before anybody could see that it has a timer
        (when (call-status call) (stop-timer site timer)))))
  nil)

;;; Futures

(defun future-p (call)
  "The operation FUTURE-P."
  (let ((line (inproc-call-line call)))
    (and line (line-unattended line))))

(defun reply-of-future (call)
  "The operation REPLY-OF-FUTURE."
  (line-reply (call-line call)))

(defun reserve-of-future (call)
  "The operation RESERVE-OF-FUTURE."
  (let ((client-loop (ensure-client-loop (call-site call))))
    (and client-loop (rpc:client-loop-reserve client-loop))))

;;; The two ends

(rpc:define-transport-end **client-operations** (:client)
  :send #'client-send :close-send #'client-close-send :receive #'client-receive
  :each #'client-each :look #'look :after #'run-after
  :leave #'client-leave :await-metadata #'client-await-metadata
  :abort #'client-abort :post #'run-here :schedule #'schedule :room #'sending-room :taken #'taken
  :drive #'client-drive :park #'client-park
  :now #'call-now :peer #'site-peer :stage #'line-stage :stages #'line-stages :other-end #'other-end
  :future-p #'future-p :reply-of-future #'reply-of-future :reserve-of-future #'reserve-of-future)

(rpc:define-transport-end **server-operations** (:server)
  :send #'server-send :close-send #'server-close-send :send-metadata #'server-send-metadata
  :receive #'server-receive :look #'look :reply #'server-reply :finish #'server-finish
  :after #'run-after
  :abort #'server-abort :post #'run-here :schedule #'schedule :room #'sending-room :taken #'taken
  :drive #'no-drive :park #'inproc-park
  :now #'call-now :peer #'site-peer :stage #'line-stage :stages #'line-stages
  :other-end #'other-end)
