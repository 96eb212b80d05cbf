;;;; How a call ends: at both ends at once. The thread that claims the end first ends it.
;;;;
;;;; A call whose handler runs on its caller's thread has no timer for its deadline, and is not told
;;;; when its server stops: each operation on the call looks for both (LOOK). Other calls are
;;;; registered with their host, and their deadline has a timer.

(in-package #:clgrpc.inproc)

(define-hot wake-driver ((line line)) null
  "Something has come for the client of LINE: if the client runs the loop of its handlers meanwhile,
make it look."
  (let ((driver (line-driver line)))
    (when (and driver (not (eq driver sb-thread:*current-thread*)))
      (loop:post (the loop:event-loop (site-execution (call-site (line-client line))))
                 (constantly nil))))
  nil)

(define-hot end-line ((line line) (client-end list) (server-end list) (answered boolean)) boolean
  "End the call of LINE and return true; return false if it had ended already. CLIENT-END and
SERVER-END are the arguments of END-CALL for each end. If ANSWERED, the handler's side ends the
call, and the client gets its trailers."
  (sb-sys:without-interrupts            ; who claims the end brings it about
    (when (null (compare-and-swap (line-claim line) nil t))
      (let* ((client (line-client line))
             (server (line-server line))
             (trailers (and answered (rpc:call-trailers server))))
        (when trailers
          (setf (rpc:ending-trailer-fields (rpc:ensure-ending client))
                (status:metadata-entries trailers)))
        (apply #'rpc:end-call server server-end)
        (apply #'rpc:end-call client client-end)
        (tell-attempt-ended client)
        (settle line)
        (unwind-protect (sb-sys:allow-with-interrupts (tell-ended line))
          (wake-driver line)
          (unless (eq :open (host-state (line-host line)))
            (when (host-server (line-host line))
              (serving:note-emptied (host-server (line-host line))))))
        t))))

(define-hot settle ((line line)) null
  "The call of LINE, which has ended, counts no more."
  (count-ended (host-tally (line-host line)))
  (when (line-registered line) (unregister line))
  (forget-timers (line-client line))
  (forget-timers (line-server line))
  (let ((event-loop (line-entered line)))
    (when event-loop (loop:leave-call event-loop (line-unattended line))))
  nil)

(define-hot tell-ended ((line line)) null
  "The call of LINE has ended: tell those who wait for that. Each is told, though another leaves
this by a non-local exit."
  (let ((client (line-client line)) (server (line-server line)))
    (unwind-protect
         (when (and (line-unattended line)
                    (compare-and-swap (line-completions line) '() :done)) ; true if there are any
           (loop:run-completions client))
      (unwind-protect (when (rpc:callbacks-p server) (operate schedule server))
        (when (rpc:callbacks-p client) (operate schedule client)))))
  nil)

(define-hot end-well ((line line)) null
  "The handler has done what it should."
  (end-line line '(:ok) '(:ok :ended-by :local) t)
  nil)

(defun end-as (line status message details trailers)
  "The handler ends its call with STATUS."
  (unless (line-claim line) (rpc:add-trailers (line-server line) trailers))
  (end-line line
            (list status :message message :details details)
            (list status :message message :details details :ended-by :local)
            t))

(defun end-by-client (line status text)
  "The caller ends the call with STATUS."
  (multiple-value-bind (server-status server-text) (rpc:verdict :caller-gone)
    (end-line line
              (list status :message text :ended-by :local)
              (list server-status :message server-text :ended-by :transport)
              nil)))

(defun end-by-server (line status text)
  "End the call of LINE with STATUS from the handler's side, though not by its handler."
  (end-line line
            (list status :message text)
            (list status :message text :ended-by :local)
            t))

(defun expire (line)
  "End the call of LINE, whose deadline has passed: at each end as if that had found out by itself."
  (multiple-value-bind (status text) (rpc:verdict :deadline-passed)
    (let ((how (list status :message text :ended-by :local)))
      (end-line line how how nil))))

(define-hot look ((call inproc-call)) symbol
  "The operation LOOK. End CALL if its deadline has passed, its server has abandoned it or its
channel is closed; return its status."
  (unless (call-status call)
    (let ((line (inproc-call-line call)))
      (when (rpc:overdue-p call) (expire (call-line call)))
      (when (and line (eq :abandoned (host-state (line-host line))))
        (apply #'end-by-server line (host-ending (line-host line))))
      (unless (site-open (call-site call))
        (rpc:abort-as (line-client (call-line call)) :channel-closed))))
  (call-status call))

;;; Calls that run on their own

(defun register (line)
  "The call of LINE goes on by itself: start the timer of its deadline, and register it with its
host."
  (sb-sys:without-interrupts            ; who registers it looks whether it has ended
    (unless (shiftf (line-registered line) t)
      (let* ((host (line-host line))
             (call (line-server line))
             (site (call-site call))
             (deadline (call-deadline call))
             (open (sb-thread:with-mutex ((host-lock host))
                     (setf (gethash line (host-lines host)) t)
                     (hash-table-count (host-lines host)))))
        (when (plusp deadline)
          (setf (line-timer line)
                (make-timer (lambda (line) (run-aside site (lambda () (expire line)))) line))
          (run-timer site (line-timer line) deadline))
        ;; it may have ended meanwhile, or its host been given up
        (sb-sys:allow-with-interrupts
          (cond ((line-claim line) (unregister line))
                ((> open (options-max-calls (host-options host)))
                 (rpc:abort-as call :too-many-calls))
                (t (look call))))))))

(defun unregister (line)
  (let* ((host (line-host line))
         (site (call-site (line-server line))))
    (sb-thread:with-mutex ((host-lock host))
      (remhash line (host-lines host)))
    (let ((timer (shiftf (line-timer line) nil)))
      (when timer (stop-timer site timer)))))
