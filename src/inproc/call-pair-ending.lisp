;;;; The end of a call, at both ends at once. Several threads may try to end a call; the first one
;;;; that claims the end performs it.
;;;;
;;;; A call whose handler runs on its caller's thread has no timer for its deadline, and is not
;;;; notified when its server stops: so each operation on the call checks for both events (LOOK).
;;;; Other calls are registered with their callee, and their deadline has a timer.

(in-package #:clgrpc.inproc)

(define-hot wake-driver ((call-pair call-pair)) null
  "If the client of CALL-PAIR runs the loop of the handlers, make it check its call, for which a
message or the end has arrived."
  (let ((driver (call-pair-driver call-pair)))
    (when (and driver (not (eq driver sb-thread:*current-thread*)))
      (loop:post (the loop:event-loop
                      (inproc-core-execution (call-inproc-core (call-pair-client call-pair))))
                 (constantly nil))))
  nil)

(define-hot (note-settled :inline t) ((callee callee)) null
  "If CALLEE's server stops, wake the threads that wait for its calls. Call this when a call of
CALLEE was counted as ended."
  (unless (eq :open (callee-state callee))
    (when (callee-server callee) (serving:note-emptied (callee-server callee))))
  nil)

(defun arrived-p (call-pair)
  "For a call of CALL-PAIR whose end was claimed while it waited for its credentials: true if the
callee has the call, false if the callee will never get the call."
  (sb-thread:with-mutex ((callee-lock (call-pair-callee call-pair)))) ; a TAKE-CALL may be under way
  (not (or (to-come-p call-pair) (callee-relays (call-pair-callee call-pair)))))

(define-hot end-call-pair
            ((call-pair call-pair) (client-end list) (server-end list) (answered boolean)) boolean
  "End the call of CALL-PAIR and return true; return false if it had ended already. CLIENT-END and
SERVER-END are the arguments of END-CALL for each end. If ANSWERED is true, the handler's side ends
the call, and the client gets the handler's trailers."
  (sb-sys:without-interrupts            ; the thread that claims the end must perform it
    (when (null (compare-and-swap (call-pair-claim call-pair) nil t))
      (unless (or (not (eq :asking (call-pair-phase call-pair))) (arrived-p call-pair))
        (setf client-end (append client-end '(:sent nil))))
      (let* ((client (call-pair-client call-pair))
             (server (call-pair-server call-pair))
             (trailers (and answered (rpc:call-trailers server))))
        (when trailers
          (setf (rpc:trailer-fields client)
                (metadata-entries trailers)))
        (apply #'rpc:end-call server server-end)
        (apply #'rpc:end-call client client-end)
        (tell-attempt-ended client)
        (settle call-pair)
        (unwind-protect (sb-sys:allow-with-interrupts (tell-ended call-pair))
          (wake-driver call-pair)
          (note-settled (call-pair-callee call-pair)))
        t))))

(define-hot settle ((call-pair call-pair)) null
  "Stop counting the call of CALL-PAIR, which has ended."
  (count-ended (callee-tally (call-pair-callee call-pair)))
  (when (call-pair-registered call-pair) (unregister call-pair))
  (forget-timers (call-pair-client call-pair))
  (forget-timers (call-pair-server call-pair))
  (let ((event-loop (call-pair-entered call-pair)))
    (when event-loop (loop:leave-call event-loop (call-pair-unattended call-pair))))
  nil)

(define-hot tell-ended ((call-pair call-pair)) null
  "Notify all that wait for the end of CALL-PAIR's call, which has ended; continue even if a
non-local exit leaves one notification."
  (let ((client (call-pair-client call-pair)) (server (call-pair-server call-pair)))
    (unwind-protect
         (when (and (call-pair-unattended call-pair)
                    ;; true if there are any
                    (compare-and-swap (call-pair-completions call-pair) '() :done))
           (loop:run-completions client))
      (unwind-protect (rpc:schedule-callbacks server)
        (rpc:schedule-callbacks client))))
  nil)

(define-hot end-well ((call-pair call-pair)) null
  "End the call with :ok, since its handler has returned."
  (end-call-pair call-pair '(:ok) '(:ok :ended-by :local) t)
  nil)

(defun end-as (call-pair status message details trailers)
  "End the call with STATUS, for its handler."
  (unless (call-pair-claim call-pair) (rpc:add-trailers (call-pair-server call-pair) trailers))
  (end-call-pair call-pair
                 (list status :message message :details details)
                 (list status :message message :details details :ended-by :local)
                 t))

(defun end-by-client (call-pair status text)
  "End the call with STATUS, for its caller."
  (multiple-value-bind (server-status server-text) (rpc:verdict :caller-gone)
    (end-call-pair call-pair
                   (list status :message text :ended-by :local)
                   (list server-status :message server-text :ended-by :transport)
                   nil)))

(defun end-by-server (call-pair status text)
  "End the call of CALL-PAIR with STATUS on the handler's side, but not for its handler."
  (end-call-pair call-pair
                 (list status :message text)
                 (list status :message text :ended-by :local)
                 t))

(defun expire (call-pair)
  "End the call of CALL-PAIR, whose deadline has passed, as if each end had noticed this itself."
  (multiple-value-bind (status text) (rpc:verdict :deadline-passed)
    (let ((how (list status :message text :ended-by :local)))
      (end-call-pair call-pair how how nil))))

(define-hot look ((call inproc-call)) symbol
  "The operation LOOK. End CALL if its deadline has passed, its server has abandoned it or its
channel is closed; return its status."
  (unless (call-status call)
    (let ((call-pair (inproc-call-call-pair call)))
      (when (rpc:overdue-p call) (expire (call-call-pair call)))
      (when (and call-pair (eq :abandoned (callee-state (call-pair-callee call-pair))))
        (apply #'end-by-server call-pair (callee-ending (call-pair-callee call-pair))))
      (unless (inproc-core-open (call-inproc-core call))
        (rpc:abort-as (call-pair-client (call-call-pair call)) :channel-closed))))
  (call-status call))

;;; Calls that end without being checked

(defun enlist (call-pair)
  "Add the call of CALL-PAIR to the calls of its callee."
  (sb-sys:without-interrupts            ; a thread that registers a call checks its end
    (let* ((callee (call-pair-callee call-pair))
           (open (sb-thread:with-mutex ((callee-lock callee))
                   (setf (gethash call-pair (callee-call-pairs callee)) t)
                   (hash-table-count (callee-call-pairs callee)))))
      ;; meanwhile the call may have ended, or its callee may have been abandoned
      (sb-sys:allow-with-interrupts
        (cond ((call-pair-claim call-pair) (unregister call-pair))
              ((> open (options-max-calls (callee-options callee)))
               (rpc:abort-as (call-pair-server call-pair) :too-many-calls))
              (t (look (call-pair-server call-pair))))))))

(defun register (call-pair)
  "Start the timer of the deadline of CALL-PAIR's call, and register the call with its callee: from
now on the client's threads do not check the deadline."
  (sb-sys:without-interrupts            ; a thread that registers a call checks its end
    (when (null (compare-and-swap (call-pair-registered call-pair) nil t))
      (let* ((call (call-pair-server call-pair))
             (inproc-core (call-inproc-core call))
             (deadline (call-deadline call)))
        (when (plusp deadline)
          (let ((timer (make-timer (lambda (call-pair)
                                     (run-on-client-reserve inproc-core
                                                            (lambda () (expire call-pair))))
                                   call-pair)))
            (setf (call-pair-timer call-pair) timer)
            (start-core-timer inproc-core timer deadline)
            ;; the thread that ended the call may have stopped the timer before it was started
            (when (call-pair-claim call-pair) (stop-core-timer inproc-core timer))))
        (enlist call-pair)))))

(defun unregister (call-pair)
  (let* ((callee (call-pair-callee call-pair))
         (inproc-core (call-inproc-core (call-pair-server call-pair))))
    (sb-thread:with-mutex ((callee-lock callee))
      (remhash call-pair (callee-call-pairs callee)))
    (let ((timer (shiftf (call-pair-timer call-pair) nil)))
      (when timer (stop-core-timer inproc-core timer)))))

;;; Calls that wait for their credentials
;;;
;;; A callee knows nothing of these calls. A second callee, which the client uses alone, holds them,
;;; so that deadlines and CLOSE-CHANNEL end them like other calls. Once its credentials have
;;; answered, a call moves from the second callee to its real one.

(defun asking-callee (callee)
  "The callee that holds the calls to CALLEE that wait for their credentials."
  (or (callee-asking callee)
      (let ((asking (make-callee :name (callee-name callee)
                                 :options (copy-options (callee-options callee)))))
        (setf (callee-asking asking) asking
              ;; the server's limit applies only to calls that the server has
              (options-max-calls (callee-options asking)) 10000000)
        (or (compare-and-swap (callee-asking callee) nil asking) asking))))

(defun take-call (callee call-pair route)
  "Give the call of CALL-PAIR, to ROUTE, to CALLEE. Return false if the call has ended."
  (let ((asking (call-pair-callee call-pair)))
    (sb-sys:without-interrupts          ; a counted call must also be left
      (sb-thread:with-mutex ((callee-lock asking))
        (unless (call-pair-claim call-pair)
          (remhash call-pair (callee-call-pairs asking))
          (count-ended (callee-tally asking))
          (count-begun (callee-tally callee))
          (setf (call-pair-route call-pair) route
                (call-pair-callee call-pair) callee)
          t)))))

(defun end-unsent (call-pair status &rest how)
  "At the client's end, end the call of CALL-PAIR, which waits for its credentials, with STATUS and
HOW, arguments of END-CALL."
  (multiple-value-bind (server-status text) (rpc:verdict :caller-gone)
    (end-call-pair call-pair (cons status how)
                   (list server-status :message text :ended-by :transport)
                   nil)))
