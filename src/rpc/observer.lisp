;;;; Observers count or record the events of a server or a channel: its calls, attempts, messages,
;;;; connections and refusals. An OBSERVER is a structure of functions, which the table below
;;;; declares. The :observer of a server or channel may be several observers; OBSERVER-FOR joins
;;;; them into one structure, for each loop of a server and for each channel. Without an observer,
;;;; each event costs a load and a test. The tracers are a further observer of every server and
;;;; channel, which is called only while a tracer is on.
;;;;
;;;; An observer's functions are called where the events happen: on the call's loop, with the baton
;;;; held. So these functions must be short, must not wait, and may only read data of the call. An
;;;; error in a user's function is logged; after it the work of the call continues as usual, such as
;;;; waking the threads that wait for the call's end. The observers of clgrpc itself establish no
;;;; handlers, so they call each user's function in GUARDING.

(in-package #:clgrpc.rpc)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defstruct (observation (:copier nil))
    "A row of the table: an event that observers receive."
    (name nil :type symbol)             ; the name of the event
    (lambda-list '() :type list)        ; the lambda list of the observer's function
    (tracer nil :type (or null keyword)) ; while this tracer is on, the tracers get the event too
    (text "" :type string))             ; the event, as text

  (defvar *observations* '() "The rows of the table, in its order.")

  (defun parse-observation (form)
    (destructuring-bind (name lambda-list tracer text) form
      (make-observation :name name :lambda-list lambda-list :tracer tracer :text text)))

  (defun find-observation (name)
    (or (find name *observations* :key #'observation-name :test #'string=)
        (error "~S is not an observation." name)))

  (defun observer-name (control name)
    (intern (format nil control name) '#:clgrpc.rpc)))

(defmacro define-observations (documentation &body rows)
  "Declare the events that observers receive. A row is (NAME LAMBDA-LIST TRACER TEXT)."
  (let ((parsed (mapcar #'parse-observation rows)))
    `(progn
       (eval-when (:compile-toplevel :load-toplevel :execute)
         (setf *observations* (mapcar #'parse-observation ',rows)))
       (defstruct (observer (:constructor %make-observer) (:copier nil))
         ,documentation
         (late nil :type (or null function)) ; see LATE-VALUE
         ,@(loop for row in parsed
                 collect `(,(observation-name row) nil :type (or null function))))
       (declaim (sb-ext:freeze-type observer))
       (sb-ext:define-load-time-global **tracing-observer** (%make-observer))
       ,@(mapcar #'expand-teller parsed)
       (document-functions
         observer-late "The function of OBSERVER for LATE-VALUE, or nil."
         ,@(loop for row in parsed
                 collect (observer-name "OBSERVER-~A" (observation-name row))
                 collect (observation-text row))))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun expand-teller (row)
    "The form that defines three functions for the observation ROW: one reports it, the others join
and guard the functions of observers for it."
    (let ((reader (observer-name "OBSERVER-~A" (observation-name row)))
          (arguments (observation-lambda-list row)))
      `(progn
         ,@(when (observation-tracer row)
             `((defun ,(observer-name "TELL-~A" (observation-name row)) (observer ,@arguments)
                 ,(format nil "Report to OBSERVER, or nil, and the tracers: ~A"
                          (observation-text row))
                 (dolist (observer (list observer **tracing-observer**))
                   (let ((function (and observer (,reader observer))))
                     (when function (funcall (the function function) ,@arguments)))))))
         (defun ,(observer-name "JOIN-~A" (observation-name row)) (first second third)
           (declare (type function first second) (type (or null function) third))
           (if third
               (lambda ,arguments
                 (funcall first ,@arguments)
                 (funcall second ,@arguments)
                 (funcall third ,@arguments))
               (lambda ,arguments
                 (funcall first ,@arguments)
                 (funcall second ,@arguments))))
         (defun ,(observer-name "GUARD-~A" (observation-name row)) (function)
           (declare (type function function))
           (lambda ,arguments
             (loop:guarding (:observer-error) (funcall function ,@arguments))))))))

(define-observations
    "Functions for the events of a server or a channel: one for each row of the table, or nil."
  (call-made (call) nil
    "CALL, a client's, was made by this thread, which called the stub; CALL's loop does not know of
it yet.")
  (call-begun (call) :call
    "CALL has begun, at this end.")
  (call-ended (call) :call
    "CALL has ended, at this end; see CALL-STATUS and CALL-STAGES.")
  (attempt-begun (call peer stream) :call
    "An attempt of CALL, a client's, has a stream to PEER, an address; STREAM is its number, 0
within the image. STREAM is nil if the attempt has ended without a stream; ATTEMPT-ENDED follows at
once.")
  (attempt-ended (call peer status stream sent received ns) nil
    "An attempt of CALL, a client's, to PEER has ended, with or without a stream. STATUS is the
attempt's status: :cancelled if CALL continues with another attempt, and CALL's own if CALL has
ended with this one. SENT and RECEIVED are the octets of the attempt's messages, counted as in
MESSAGE-SENT; NS is its duration in nanoseconds.")
  (headers-sent (call) nil
    "CALL's headers have been written.")
  (headers-received (call) nil
    "The headers of CALL's peer were received.")
  (message-sent (call octets) nil
    "A message of CALL was written; it has OCTETS octets on the wire, without its prefix. For a
client's call the event occurs in each attempt.")
  (message-received (call octets) nil
    "A message for CALL was received, with OCTETS octets on the wire without its prefix.")
  (request-begun (call authority) nil
    "The headers of CALL, a handler's, were received; AUTHORITY is their :authority, a text, or nil.
Never within the image.")
  (content-sent (call octets start end encoding) nil
    "A message of CALL is about to be written: OCTETS from START to END, compressed by ENCODING, a
keyword, unless that is nil. OCTETS are valid only during the call of the function. A retry reports
a single request again, but not the messages of a stream.")
  (content-received (call octets start end encoding) nil
    "A message for CALL was received; the arguments are as in CONTENT-SENT.")
  (half-closed (call) nil
    "CALL's client will send no more messages. The event occurs for handlers' calls, and for
clients' calls whose requests are sent one by one.")
  (connection-begun (peer) nil
    "A connection with PEER, an address, has been made.")
  (connection-ended (peer reason) nil
    "The connection with PEER has ended because of REASON, a text.")
  (subchannel-connected (peer) nil
    "A subchannel of a channel has a working connection with PEER: PEER's SETTINGS were received.")
  (subchannel-disconnected (peer error) nil
    "A connection that SUBCHANNEL-CONNECTED reported has ended. ERROR is a text of gRFC A94:
\"GOAWAY NO_ERROR\", \"subchannel shutdown\", \"connection reset\" and so on.")
  (subchannel-failed (reason) nil
    "An attempt of a subchannel to connect to one address has failed because of REASON, a text.")
  (weights-updated (weights stale fallback) nil
    "A weighted_round_robin policy has computed WEIGHTS, a vector of a number for each ready
endpoint, 0 without a valid weight. STALE is the number of endpoints whose load reports are too old.
FALLBACK is true if too few endpoints have a weight, so that they get calls in turn.")
  (refused (option peer) nil
    "A call or connection of PEER was refused or ended because of OPTION, a keyword of the options
table."))

(defun make-observer (&rest functions)
  "Return an observer, for :observer of START-SERVER, MAKE-CHANNEL or SERVER-CHANNEL. FUNCTIONS is a
plist from the name of an observation to a function of the arguments below:
 :call-made, of clients' calls, :call-begun and :call-ended (call);
 :attempt-begun (call peer stream), of clients' calls;
 :attempt-ended (call peer status stream sent received ns), of clients' calls;
 :headers-sent and :headers-received (call);
 :message-sent and :message-received (call octets);
 :request-begun (call authority), :content-sent and :content-received (call octets start end
   encoding), and :half-closed (call), for logs of the contents of calls;
 :connection-begun (peer) and :connection-ended (peer reason);
 :subchannel-connected (peer), :subchannel-disconnected (peer error), :subchannel-failed (reason)
   and :weights-updated (weights stale fallback), of channels;
 :refused (option peer), of servers.
PEER is an address, a string or nil. The functions are called on the loop or, for calls within the
image, on the thread that makes or handles the call. These functions must not wait; an error in one
of them is logged. Signal MISUSE for any other name, and for a value that is neither a function nor
nil. With :trusted t the caller promises that the functions signal no errors; then no handlers are
established around them. From any thread."
  (when (getf functions :trusted)
    (return-from make-observer
      (apply #'%make-observer (loop for (name function) on functions by #'cddr
                                    unless (eq :trusted name)
                                      collect name and collect function))))
  (apply #'%make-observer
         (loop for (name function) on functions by #'cddr
               for row = (find name *observations* :key #'observation-name :test #'string=)
               do (unless row
                    (misuse "~S is not an event of observers; these are:~{ ~(~S~)~^,~}." name
                            (mapcar #'observation-name *observations*)))
                  (unless (typep function '(or null function))
                    (misuse "The value of ~S is a function, not ~S." name function))
               collect name
               collect (and function
                            (funcall (observer-name "GUARD-~A" (observation-name row))
                                     function)))))

(defun join-functions (join functions)
  "A function that calls FUNCTIONS, a list, in their order; nil for no functions. JOIN joins two or
three of them."
  (loop while (rest functions)
        do (destructuring-bind (first second &optional third &rest more) functions
             (setf functions (cons (funcall join first second third) more))))
  (first functions))

(defun join-observers (observers)
  "An observer that reports each event to OBSERVERS, a list, in their order; nil for no observers."
  (if (rest observers)
      (apply #'%make-observer
             :late (some #'observer-late observers)
             (loop for row in *observations*
                   for name = (observation-name row)
                   for reader = (observer-name "OBSERVER-~A" name)
                   collect (intern (string name) '#:keyword)
                   collect (join-functions (observer-name "JOIN-~A" name)
                                           (remove nil (mapcar reader observers)))))
      (first observers)))

(defgeneric observer-for (source &key role target loop)
  (:documentation "The OBSERVER, or nil, of SOURCE, a user's :observer, for one channel or for one
loop of a server. ROLE is :client or :server. TARGET is the channel's target in canonical form. LOOP
is the loop whose baton is held when the observer's functions are called; nil for calls within the
image.")
  (:method (source &key &allow-other-keys)
    (misuse ":observer is a value of MAKE-OBSERVER or MAKE-METRICS, or a list of these, not ~S."
            source))
  (:method ((source null) &key &allow-other-keys) nil)
  (:method ((source observer) &key &allow-other-keys) source)
  (:method ((source cons) &rest options &key &allow-other-keys)
    (join-observers (remove nil (mapcar (lambda (source) (apply #'observer-for source options))
                                        source)))))

(defgeneric check-observer (source)
  (:documentation "Return SOURCE, or a list of its observers without duplicates, for OBSERVER-FOR.
Signal MISUSE if SOURCE is not a valid :observer.")
  (:method (source)
    (misuse ":observer is a value of MAKE-OBSERVER or MAKE-METRICS, or a list of these, not ~S."
            source))
  (:method ((source null)) source)
  (:method ((source observer)) source)
  (:method ((source cons))
    (unless (null (cdr (last source)))
      (misuse ":observer is a list of observers, not ~S." source))
    (remove-duplicates (loop for one in source
                             for checked = (check-observer one)
                             append (if (listp checked) checked (list checked)))
                       :from-end t)))

(define-printer (observer observer)
  "~{~(~A~)~^ ~}"
  (loop for row in *observations*
        when (funcall (observer-name "OBSERVER-~A" (observation-name row)) observer)
          collect (observation-name row)))

(defmacro observe (name observer &rest arguments)
  "Report the observation NAME with ARGUMENTS to OBSERVER, an observer or nil. ARGUMENTS are
evaluated only if OBSERVER has a function for NAME, or the tracer of NAME is on."
  (let* ((row (find-observation name))
         (variable (gensym "OBSERVER"))
         (function (gensym "FUNCTION"))
         (tracer (observation-tracer row)))
    (unless (= (length arguments) (length (observation-lambda-list row)))
      (error "The observation ~S takes ~S." name (observation-lambda-list row)))
    `(let* ((,variable ,observer)
            (,function (and ,variable (,(observer-name "OBSERVER-~A" name) ,variable))))
       (cond ,@(when tracer
                 `(((tracing-p ,tracer)
                    (,(observer-name "TELL-~A" name) ,variable ,@arguments))))
             (,function (funcall (the function ,function) ,@arguments)))
       nil)))

(defun observation-table ()
  "The table of observations, a list of lists of texts: name, arguments, meaning."
  (loop for row in *observations*
        collect (list (format nil "`:~(~A~)`" (observation-name row))
                      (format nil "`~(~A~)`" (observation-lambda-list row))
                      (substitute #\Space #\Newline (observation-text row)))))
