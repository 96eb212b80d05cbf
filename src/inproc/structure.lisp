;;;; What in-process calls are made of.
;;;;
;;;; A HOST is the end that serves: a server, or a service object by itself; a SITE is the other, a
;;;; channel. A call has two ends, INPROC-CALLs, one for the caller and one for the handler, which
;;;; know each other by a LINE. A unary call that the handler answers on the caller's thread, as
;;;; nearly all do, needs no line: its caller's end is made when it is over. So such a call is two
;;;; objects of 80 octets.
;;;;
;;;; Counts are kept in a TALLY of many places, each on cache lines of its own, of which a thread
;;;; uses one, so that threads that call at once do not pass a line of memory to and fro.

(in-package #:clgrpc.inproc)

;;; Counts

(defconstant +places+ 64 "How many places a tally has.")
(defconstant +place-words+ 16 "What two cache lines hold, since processors fetch them in pairs.")

(deftype tally ()
  "At each place how many calls have begun there, and how many have ended."
  `(simple-array sb-ext:word (,(* +places+ +place-words+))))

(defun make-tally ()
  (make-array (* +places+ +place-words+) :element-type 'sb-ext:word :initial-element 0))

(define-hot (place :inline t) () index
  "Where this thread counts: by the address of its stack, which is 2 MB long at least."
  (* +place-words+
     (logand (1- +places+) (ash (sb-sys:sap-int (sb-kernel:current-sp)) -21))))

(define-hot (count-begun :inline t) ((tally tally)) null
  (atomic-incf (aref tally (place)))
  nil)

(define-hot (count-ended :inline t) ((tally tally)) null
  (atomic-incf (aref tally (1+ (place))))
  nil)

(defun total (tally offset)
  (loop for i from offset below (length tally) by +place-words+
        sum (aref (the tally tally) i)))

(defun tally-ended (tally) (total tally 1))

(defun tally-open (tally)
  "How many of the calls that TALLY has counted are under way."
  ;; those that end between the two sums must not count as never begun
  (let ((ended (total tally 1)))
    (sb-thread:barrier (:read))
    (- (total tally 0) ended)))

;;; Ends

(defstruct (inproc-route (:include rpc:route) (:conc-name route-) (:copier nil))
  "Where a method leads within the image."
  (kept nil :type (or null function)))  ; the handler that answered later, last time

(declaim (sb-ext:freeze-type inproc-route))

(defstruct (host (:copier nil))
  "Whom calls are made to. SERVER is nil for a service object by itself. TABLE holds the routes of
SERVICES. STATE is :abandoned once a server that stops has waited long enough; then ENDING is
(status text) for the calls it still has. LINES are the calls that run on other threads than their
callers', or none; LOCK is for those and for a new TABLE."
  (server nil)
  (services '() :type list)
  (interceptors '() :type list)
  (options nil :type options)
  (name nil :type (or null string))
  (table nil :type (or null rpc:route-table))
  (state :open :type (member :open :closed :abandoned))
  (ending '() :type list)
  (tally (make-tally) :type tally)
  (lock (sb-thread:make-mutex :name "clgrpc in-process host") :read-only t)
  (lines (make-hash-table :test 'eq) :type hash-table))

(declaim (sb-ext:freeze-type host))

(defmethod print-object ((host host) stream)
  (print-unreadable-object (host stream :type t)
    (format stream "~:[~;~:*~A ~]~(~A~) ~{~(~A~)~^ ~}" (host-name host) (host-state host)
            (mapcar (lambda (service) (class-name (class-of service))) (host-services host)))))

(defstruct (site (:copier nil))
  "What all calls of a channel share. HOST is looked up by NAME if the channel was made for one.
EXECUTION is :caller, :threads, or the loop that handlers run on. CLIENT-LOOP is there once it is
needed, for timers and threads. WAITING and WATCHED are of waiting.lisp."
  (target "" :type string)
  (host nil :type (or null host))
  (name nil :type (or null string))
  (options nil :type options)
  (share nil :type boolean)
  (execution :caller :type (or (member :caller :threads) loop:event-loop))
  (open t :type boolean)
  (client-loop nil :type (or null rpc:client-loop))
  (handlers 0 :type sb-ext:word)        ; on threads of their own; atomic
  (waiting nil :type (or null simple-vector))
  (watched nil :type boolean)
  ;; what deadlines of its calls are times of
  (clock (loop:world-clock loop:*world*) :type function :read-only t)
  (lock (sb-thread:make-mutex :name "clgrpc in-process channel") :read-only t))

(declaim (sb-ext:freeze-type site))

(define-hot (site-now :inline t) ((site site)) nanoseconds
  "The time now, by SITE's clock."
  (the (values nanoseconds &optional) (funcall (site-clock site))))

;;; Calls

(defstruct (consumer (:constructor make-consumer (function handlers restarts call)) (:copier nil))
  "Whose code a handler calls on the thread of its caller: FUNCTION is the body that consumes a
stream as the handler produces it, if there is one, the others the context that the caller's code
runs in. INSIDE is true while the body runs."
  (function nil :type (or null function))
  (handlers nil :type list)
  (restarts nil :type list)
  (call nil :type (or null call))
  (inside nil :type boolean))

(declaim (sb-ext:freeze-type consumer))

(deftype mailbox ()
  "A word that two threads look at, in the middle of others that nobody does, so that neither waits
for the cache line of something else."
  '(simple-vector 24))

(defconstant +mail+ 12 "Where that word is.")

(defconstant +cache-line-octets+ 64)

(defstruct (line (:constructor make-line (host route request)) (:copier nil))
  "What the ends CLIENT and SERVER of a call know in common. REQUEST is the only one, or what sends
requests (SOURCE, user code) when the handler asks for them; READY are those that are there. PHASE
is :waiting until the handler begins, then the thread it runs on if that is its caller's or
consumer's, or :elsewhere, :over once it has returned. HELD is what the client sends before the
handler begins, the newest first, :closed from then on; HELD-OCTETS its size. CLAIM is taken by
whoever ends the call. REPLY is the answer of a method that answers once. *-WAITS says that the
sender at that end wants to know of room."
  (host nil :type (or null host))       ; nil if there was nobody to call
  (route nil :type (or null inproc-route))
  (request nil)
  (client nil :type (or null call))
  (server nil :type (or null call))
  (phase :waiting)
  (consumer nil :type (or null consumer))
  (source nil :type (or null function))
  (ready '() :type list)
  (eager nil :type boolean)             ; the handler runs while the client waits for nothing
  (held '() :type (or list (eql :closed)))
  (held-octets 0 :type index)
  (claim nil)
  (overdue nil :type boolean)           ; it has been waiting when it was looked after before
  (leaving nil :type boolean)           ; the consumer is being left, and the handler unwound
  (queued-reply nil :type boolean)      ; RECEIVE gives the reply
  (reply nil)
  (unattended nil :type boolean)        ; the client is its own future, with
  (completions '() :type loop:completions)
  (client-mail nil :type (or null mailbox)) ; for the client: see stream.lisp
  (server-mail nil :type (or null mailbox))
  (client-waits nil :type boolean)
  (server-waits nil :type boolean)
  (registered nil :type boolean)
  (entered nil :type (or null loop:event-loop)) ; where the call is counted as one
  (driver nil :type (or null sb-thread:thread)) ; the client, while it runs that loop
  (timer nil))

(declaim (inline %make-inproc-call))
(defstruct (inproc-call (:include call) (:constructor %make-inproc-call
                                            (rpc-method operations deadline fields status
                                             half-closed site line))
                        (:copier nil))
  "One end of an in-process call."
  (site nil :type site)
  (line nil :type (or null line)))

(declaim (sb-ext:freeze-type line inproc-call))

(declaim (ftype (function (inproc-call) (values line &optional)) make-up-line)) ; call.lisp

(define-hot (call-line :inline t) ((call inproc-call)) line
  "The line of CALL, made up now if it had none so far."
  (or (inproc-call-line call) (make-up-line call)))

(define-hot (other-end :inline t) ((call inproc-call)) inproc-call
  "The other end of CALL."
  (let ((line (call-line call)))
    (the inproc-call (if (rpc:client-p call) (line-server line) (line-client line)))))

(define-hot (mail :inline t) ((call inproc-call)) (or null mailbox)
  "The mailbox of CALL, or nil as long as no other thread has to do with its line."
  (let ((line (inproc-call-line call)))
    (and line (if (rpc:client-p call) (line-client-mail line) (line-server-mail line)))))

(define-hot (mail-for :inline t) ((call inproc-call)) t
  "The message in the mailbox of CALL, or nil."
  (let ((mail (mail call)))
    (and mail (svref mail +mail+))))

(define-hot (call-site :inline t) ((call inproc-call)) site
  (inproc-call-site call))

(define-hot call-now ((call inproc-call)) nanoseconds
  "The operation NOW."
  (site-now (call-site call)))

(defun site-peer (call)
  "The operation PEER."
  (site-target (call-site call)))

(defun line-stage (call)
  "The operation STAGE."
  (let ((line (inproc-call-line call)))
    (if (and line (eq :waiting (line-phase line))) :queue :answer)))

(defun line-stages (call)
  "The operation STAGES."
  (let ((outcome (rpc:call-outcome call)))
    (cond (outcome (list :stage (rpc:outcome-stage outcome)))
          ((call-status call) '())
          (t (list :stage (rpc:call-stage call))))))
