;;;; What is true of every in-process call: messages are copied and held to the limits of both ends
;;;; as they pass, and a call ends at both ends at once, by whoever claims that first.
;;;;
;;;; Nobody watches the clock, nor a server that stops, for a call whose handler runs on its
;;;; caller's thread: who enters this API for the call looks (LOOK). Other calls are registered with
;;;; their host, and their deadline has a timer.

(in-package #:clgrpc.inproc)

(declaim (sb-ext:global **client-operations** **server-operations**)) ; operation.lisp

;;; Routes

(defun renew-table (host)
  "Make the routes of HOST, whose services may have been defined anew."
  (sb-thread:with-mutex ((host-lock host))
    (setf (host-table host)
          (rpc:make-routes host (host-services host) :auto #'make-inproc-route
                           :interceptors (host-interceptors host)
                           :epoch (if (host-table host)
                                      (1+ (rpc:route-table-epoch (host-table host)))
                                      1)))))

(define-hot method-route ((table rpc:route-table) (method rpc-method)) (or null inproc-route)
  "The route of TABLE to METHOD, or nil if it has none. The method remembers it."
  (let ((memo (rpc:rpc-method-route method)))
    (if (and (inproc-route-p memo)
             (eq (rpc:route-server memo) (rpc:route-table-server table))
             (= (rpc:route-epoch memo) (rpc:route-table-epoch table)))
        memo
        (let ((route (gethash (rpc:rpc-method-path method) (rpc:route-table-routes table))))
          (when route (setf (rpc:rpc-method-route method) route))))))

(define-hot route-to ((host host) (method rpc-method)) (or null inproc-route)
  "The route of HOST to METHOD, or nil if it has none."
  (flet ((route () (method-route (the rpc:route-table (host-table host)) method)))
    (declare (inline route))
    (or (route)
        (progn (renew-table host) (route)))))

;;; Lines

(define-hot (make-client-end :inline t) ((method rpc-method) (deadline rpc:deadline) status
                                         (site site) line)
    inproc-call
  (%make-inproc-call method **client-operations** deadline nil status nil site line))

(define-hot (make-server-end :inline t) ((method rpc-method) (deadline rpc:deadline) fields
                                         (site site) line)
    inproc-call
  (%make-inproc-call method **server-operations** deadline fields nil
                     (and (member (rpc-method-kind method) '(:unary :server-streaming)) t)
                     site line))

(define-hot open-line ((site site) (host host) (route inproc-route) (method rpc-method)
                       (deadline rpc:deadline) fields)
    line
  "A line with both ends; the handler has not begun."
  (let ((line (make-line host route nil)))
    (setf (line-client line) (make-client-end method deadline nil site line)
          (line-server line) (make-server-end method deadline fields site line))
    (count-begun (host-tally host))
    line))

(defun make-up-line (call)
  "Give CALL, one that had no line so far, another end and a line: a handler that runs here, or the
client of a call that was over before it was known to anybody."
  (let* ((site (call-site call))
         (host (site-host site))
         (method (call-rpc-method call))
         (client-p (rpc:client-p call))
         (line (make-line host (and host (route-to host method)) nil)))
    (setf (line-client line) (if client-p
                                 call
                                 (make-client-end method (call-deadline call) nil site line))
          (line-server line) (if client-p
                                 (make-server-end method (call-deadline call) nil site line)
                                 call)
          (line-held line) :closed
          (line-phase line) (if client-p :over sb-thread:*current-thread*)
          (line-claim line) (and (call-status call) t))
    (when client-p (setf (call-status (line-server line)) (call-status call)))
    (or (compare-and-swap (inproc-call-line call) nil line) line)))

;;; Messages

(define-hot (site-copy :inline t) ((site site) message) t
  "MESSAGE as the other end gets it."
  (if (site-share site) message (protobuf:copy-message message)))

(defun copy-in-room (site call message size options)
  "As SITE-COPY, of a MESSAGE of CALL that is SIZE octets long, when there is room for the copy."
  (if (site-share site)
      message
      (rpc:call-with-room call size options (lambda () (protobuf:copy-message message)))))

(define-hot (sending-options :inline t) ((call inproc-call)) options
  (if (rpc:client-p call)
      (site-options (call-site call))
      (host-options (line-host (call-line call)))))

(define-hot (receiving-options :inline t) ((call inproc-call)) options
  "The options of the end that gets what CALL sends."
  (if (rpc:client-p call)
      (host-options (line-host (call-line call)))
      (site-options (call-site call))))

(define-hot pass ((call inproc-call) message) (values t index)
  "MESSAGE of CALL as the other end gets it, and its size. Signal what the wire does if it is none
of the method's messages, or too long."
  (let ((size (protobuf:measure (rpc:outgoing-type call) message)))
    (when (or (> size (options-max-send-octets (sending-options call)))
              (> size (options-max-receive-octets (receiving-options call))))
      (refuse-size call size))
    (values (if (<= size rpc:+long-octets+)
                (site-copy (call-site call) message)
                (copy-in-room (call-site call) call message size (sending-options call)))
            size)))

(defun refuse-size (call size)
  (let ((limit (options-max-send-octets (sending-options call))))
    (when (> size limit)
      (error (rpc:make-rpc-error
              :resource-exhausted :call call :ended-by :local
              :message (format nil "message of ~D octets to send, limit ~D" size limit))))
    (operate abort (other-end call) :resource-exhausted
             (format nil "message of ~D octets received, limit ~D" size
                     (options-max-receive-octets (receiving-options call)))
             :local)
    (error (rpc:call-condition call))))

;;; The end

(define-hot end-line ((line line) (client-end list) (server-end list) (trailers list)) boolean
  "End the call of LINE: CLIENT-END and SERVER-END are arguments of END-CALL, TRAILERS metadata for
the client. False if it had ended already."
  (when (null (compare-and-swap (line-claim line) nil t))
    (let ((client (line-client line)) (server (line-server line)))
      (when trailers
        (setf (rpc:ending-trailer-fields (rpc:ensure-ending client))
              (rpc:metadata-entries trailers)))
      (apply #'rpc:end-call server server-end)
      (apply #'rpc:end-call client client-end)
      (after-end line)
      t)))

(define-hot wake-driver ((line line)) null
  "Something has come for the client of LINE: if it runs the loop of its handlers meanwhile, have it
look."
  (let ((driver (line-driver line)))
    (when (and driver (not (eq driver sb-thread:*current-thread*)))
      (loop:post (the loop:event-loop (site-execution (call-site (line-client line))))
                 (constantly nil))))
  nil)

(define-hot after-end ((line line)) null
  (let ((host (line-host line)) (client (line-client line)) (server (line-server line)))
    (count-ended (host-tally host))
    (when (line-registered line) (unregister line))
    (stop-timers client)
    (stop-timers server)
    (let ((event-loop (line-entered line)))
      (when event-loop (loop:leave-call event-loop (line-unattended line))))
    (when (and (line-unattended line)
               (compare-and-swap (line-completions line) '() :done)) ; true if there are any
      (loop:run-completions client))
    (when (rpc:callbacks-p server) (operate schedule server))
    (when (rpc:callbacks-p client) (operate schedule client))
    (wake-driver line)
    (unless (eq :open (host-state host))
      (when (host-server host) (server:note-emptied (host-server host)))))
  nil)

(defun own-trailers (line)
  (let ((ending (rpc:call-ending (line-server line))))
    (and ending (rpc:ending-trailers ending))))

(define-hot end-well ((line line)) null
  "The handler has done what it should."
  (end-line line '(:ok) '(:ok :ended-by :local) (own-trailers line))
  nil)

(defun end-as (line status message details trailers)
  "The handler ends its call with STATUS."
  (end-line line
            (list status :message message :details details)
            (list status :message message :details details :ended-by :local)
            (append (own-trailers line) trailers)))

(defun end-by-client (line status text)
  "The caller ends the call with STATUS."
  (end-line line
            (list status :message text :ended-by :local)
            (list :cancelled :message "the caller has cancelled or gone" :ended-by :transport)
            '()))

(defun end-by-server (line status text)
  "The handler's side, other than by its handler, ends the call with STATUS."
  (end-line line
            (list status :message text)
            (list status :message text :ended-by :local)
            (own-trailers line)))

(defun expire (line)
  (let ((how '(:deadline-exceeded :message "the deadline passed" :ended-by :local)))
    (end-line line how how '())))

(define-hot look ((call inproc-call)) symbol
  "The operation LOOK. Has CALL end if its deadline has passed, its server has given it up or its
channel is closed."
  (unless (call-status call)
    (let ((deadline (call-deadline call))
          (line (inproc-call-line call)))
      (when (and (plusp deadline) (<= deadline (call-now call)))
        (expire (call-line call)))
      (when (and line (eq :abandoned (host-state (line-host line))))
        (apply #'end-by-server line (host-ending (line-host line))))
      (unless (site-open (call-site call))
        (end-by-client (call-line call) :cancelled "the channel was closed"))))
  (call-status call))

;;; Calls that run on their own

(defun ensure-client-loop (site)
  "The client loop that SITE uses from now on until its channel is closed; nil if that is."
  (or (site-client-loop site)
      (sb-thread:with-mutex ((site-lock site))
        (or (site-client-loop site)
            (and (site-open site)
                 (let ((client-loop (rpc:acquire-timer-loop)) (target (site-target site)))
                   ;; channels and calls refer to the site: who has none has dropped it
                   (rpc:when-dropped site (lambda ()
                                               (rpc:report-dropped target)
                                               (rpc:release-timer-loop client-loop)))
                   (setf (site-client-loop site) client-loop)))))))

(defun run-timer (site timer due-ns)
  "Have TIMER ring at DUE-NS."
  (let ((client-loop (ensure-client-loop site)))
    (when client-loop
      (let ((event-loop (rpc:client-loop-loop client-loop)))
        (loop:run-or-post event-loop
                          (lambda ()
                            (schedule-timer (loop:event-loop-wheel event-loop) timer due-ns)))))))

(defun stop-timer (site timer)
  "Undo RUN-TIMER; with SITE's channel its timers are gone."
  (let ((client-loop (site-client-loop site)))
    (when client-loop
      (let ((event-loop (rpc:client-loop-loop client-loop)))
        (loop:run-or-post event-loop
                          (lambda ()
                            (when (timer-pending-p timer)
                              (cancel-timer (loop:event-loop-wheel event-loop) timer))))))))

(define-hot stop-timers ((call inproc-call)) null
  "CALL has ended: no timer of AFTER is needed any more."
  (let ((reactions (rpc:call-reactions call)))
    (when reactions
      (dolist (timer (rpc:reactions-timers reactions))
        (stop-timer (call-site call) timer))))
  nil)

(defun run-aside (site function)
  "Have FUNCTION called on a thread that may wait."
  (let ((client-loop (ensure-client-loop site)))
    (unless (and client-loop
                 (loop:run-on-reserve (rpc:client-loop-reserve client-loop) function
                                      :if-busy :insist))
      (funcall function))))

(defun register (line)
  "The call of LINE goes on by itself: have its deadline watched, and its host know of it."
  (unless (shiftf (line-registered line) t)
    (let* ((host (line-host line))
           (call (line-server line))
           (site (call-site call))
           (deadline (call-deadline call)))
      (when (> (sb-thread:with-mutex ((host-lock host))
                 (setf (gethash line (host-lines host)) t)
                 (hash-table-count (host-lines host)))
               (options-max-calls (host-options host)))
        (end-by-server line :resource-exhausted "the server has too many calls (max-calls)"))
      (when (plusp deadline)
        (setf (line-timer line)
              (make-timer (lambda (line) (run-aside site (lambda () (expire line)))) line))
        (run-timer site (line-timer line) deadline))
      ;; it may have ended meanwhile, or its host been given up
      (if (line-claim line) (unregister line) (look call)))))

(defun unregister (line)
  (let* ((host (line-host line))
         (site (call-site (line-server line))))
    (sb-thread:with-mutex ((host-lock host))
      (remhash line (host-lines host)))
    (let ((timer (shiftf (line-timer line) nil)))
      (when timer (stop-timer site timer)))))
