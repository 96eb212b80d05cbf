;;;; Observers count or record what a server or a channel does: its calls, attempts, messages,
;;;; connections and refusals. An OBSERVER is a structure of functions, which the table below
;;;; declares. What the user of a server or channel gives as :observer may be several; they are
;;;; joined into one structure (OBSERVER-FOR), for each loop of a server and for each channel.
;;;; Without one, each place that could tell costs a load and a test. The tracers are one more
;;;; observer, which every server and channel has; it is called only while a tracer is on.
;;;;
;;;; An observer's functions are called where things happen: on the call's loop, with the baton
;;;; held. So they must be short, must not wait, and may only read the call. An error in one that a
;;;; user has given goes to the log.

(in-package #:clgrpc.rpc)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defstruct (observation (:copier nil))
    "A row of the table: something that observers are told."
    (name nil :type symbol)             ; by which it is told
    (lambda-list '() :type list)        ; what the observer's function is called with
    (tracer nil :type (or null keyword)) ; while this tracer is on, the tracers are told as well
    (text "" :type string))             ; when it is told, and of what

  (defvar *observations* '() "The rows of the table, in its order.")

  (defun parse-observation (form)
    (destructuring-bind (name lambda-list tracer text) form
      (make-observation :name name :lambda-list lambda-list :tracer tracer :text text)))

  (defun find-observation (name)
    (or (find name *observations* :key #'observation-name :test #'string=)
        (error "There is no observation ~S." name)))

  (defun observer-name (control name)
    (intern (format nil control name) '#:clgrpc.rpc)))

(defmacro define-observations (documentation &body rows)
  "Declare what observers are told. A row is (NAME LAMBDA-LIST TRACER TEXT)."
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
         observer-late "What OBSERVER has for LATE-VALUE, or nil."
         ,@(loop for row in parsed
                 collect (observer-name "OBSERVER-~A" (observation-name row))
                 collect (observation-text row))))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun expand-teller (row)
    "The function that tells the observation ROW, and the one that joins functions for it."
    (let ((reader (observer-name "OBSERVER-~A" (observation-name row)))
          (arguments (observation-lambda-list row)))
      `(progn
         ,@(when (observation-tracer row)
             `((defun ,(observer-name "TELL-~A" (observation-name row)) (observer ,@arguments)
                 ,(format nil "Tell OBSERVER, or nil, and the tracers: ~A" (observation-text row))
                 (dolist (observer (list observer **tracing-observer**))
                   (let ((function (and observer (,reader observer))))
                     (when function (funcall (the function function) ,@arguments)))))))
         (defun ,(observer-name "JOIN-~A" (observation-name row)) (first second)
           (declare (type (or null function) first second))
           (if (and first second)
               (lambda ,arguments
                 (funcall first ,@arguments)
                 (funcall second ,@arguments))
               (or first second)))
         (defun ,(observer-name "GUARD-~A" (observation-name row)) (function)
           (declare (type function function))
           (lambda ,arguments
             (loop:guarding (:observer-error) (funcall function ,@arguments))))))))

(define-observations
    "Functions that are told what a server or a channel does, each nil or one of the table's rows."
  (call-made (call) nil
    "CALL, a client's, has been made by this thread, which called the stub; its loop does not know
it yet.")
  (call-begun (call) :call
    "CALL has begun, at this end.")
  (call-ended (call) :call
    "CALL has ended, at this end: CALL-STATUS says how, CALL-STAGES where its time went.")
  (attempt-begun (call peer stream) :call
    "An attempt of CALL, a client's, has a stream, which has the number STREAM, 0 within the image,
and leads to PEER, an address. Or it has ended without a stream: then STREAM is nil, and it is told
to have ended next.")
  (attempt-ended (call peer status stream sent received ns) nil
    "The stream of an attempt of CALL, a client's, to PEER is over, or it has ended without one:
STATUS is that of the attempt, :cancelled if another has the call, that of CALL if it has ended with
this one. SENT and RECEIVED are the octets of its messages, as MESSAGE-SENT has them; NS is how long
it took.")
  (headers-sent (call) nil
    "CALL's headers have been written.")
  (headers-received (call) nil
    "The headers of CALL's peer have come.")
  (message-sent (call octets) nil
    "A message of CALL has been written that takes OCTETS on the wire, without its prefix; of a
client's call in each of its attempts.")
  (message-received (call octets) nil
    "A message for CALL has come that took OCTETS on the wire, without its prefix.")
  (request-begun (call authority) nil
    "The headers of CALL, a handler's, have come, which ask for AUTHORITY, a text or nil; not told
within the image.")
  (content-sent (call octets start end encoding) nil
    "A message of CALL is about to be written: OCTETS from START to END, compressed by ENCODING, a
keyword, unless that is nil. OCTETS are valid only now. The only request of a call that is made
again is told of again, messages of a stream are not.")
  (content-received (call octets start end encoding) nil
    "A message for CALL has come, as CONTENT-SENT has it.")
  (half-closed (call) nil
    "CALL's client sends no more: told of handlers' calls, and of clients' whose requests come one
by one.")
  (connection-begun (peer) nil
    "A connection with PEER, an address, has been made.")
  (connection-ended (peer reason) nil
    "The connection with PEER has ended because of REASON, a text.")
  (subchannel-connected (peer) nil
    "A subchannel of a channel has a working connection with PEER: its SETTINGS have come.")
  (subchannel-disconnected (peer error) nil
    "A connection that SUBCHANNEL-CONNECTED told of has ended. ERROR is a text of gRFC A94:
\"GOAWAY NO_ERROR\", \"subchannel shutdown\", \"connection reset\" and so on.")
  (subchannel-failed (reason) nil
    "An attempt of a subchannel to connect to one address has failed because of REASON, a text.")
  (weights-updated (weights stale fallback) nil
    "A weighted_round_robin policy has computed WEIGHTS, a vector of a number for each endpoint that
is ready, 0 if it has no weight that counts. The last loads of STALE of these are too old. FALLBACK
is true if too few have a weight, so that calls are given by turns.")
  (refused (option peer) nil
    "A call or connection of PEER was refused or ended because of OPTION, a keyword of the options
table."))

(defun make-observer (&rest functions)
  "Return an observer, for :observer of START-SERVER, MAKE-CHANNEL or SERVER-CHANNEL. FUNCTIONS is a
plist from the name of an observation to a function:
:call-made, of clients' calls, :call-begun and :call-ended (call); :attempt-begun (call peer stream)
and :attempt-ended (call peer status stream sent received ns), of clients' calls; :headers-sent and
:headers-received (call); :message-sent and :message-received (call octets); :request-begun (call
authority), :content-sent (call octets start end encoding), :content-received (call octets start end
encoding) and :half-closed (call), for logs of all that calls carry; :connection-begun (peer) and
:connection-ended (peer reason); :subchannel-connected (peer), :subchannel-disconnected (peer
error), :subchannel-failed (reason) and :weights-updated (weights stale fallback), of channels;
:refused (option peer), of servers. PEER is an address, a string or nil. The functions are called on
the loop or, for calls within the image, on the thread that makes or handles the call. They must not
wait; an error in one goes to the log. Signal MISUSE for any other name, and for a value that is
neither a function nor nil. With :trusted t the functions signal no errors, and nothing looks for
any. From any thread."
  (when (getf functions :trusted)
    (return-from make-observer
      (apply #'%make-observer (loop for (name function) on functions by #'cddr
                                    unless (eq :trusted name)
                                      collect name and collect function))))
  (apply #'%make-observer
         (loop for (name function) on functions by #'cddr
               for row = (find name *observations* :key #'observation-name :test #'string=)
               do (unless row
                    (misuse "Observers are not told ~S, but~{ ~(~S~)~^,~}." name
                            (mapcar #'observation-name *observations*)))
                  (unless (typep function '(or null function))
                    (misuse "What ~S is told to is a function, not ~S." name function))
               collect name
               collect (and function
                            (funcall (observer-name "GUARD-~A" (observation-name row))
                                     function)))))

(defun join-observers (first second)
  "An observer that tells FIRST, then SECOND; each is one or nil, as is the value."
  (if (and first second)
      (apply #'%make-observer
             :late (or (observer-late first) (observer-late second))
             (loop for row in *observations*
                   for name = (observation-name row)
                   for reader = (observer-name "OBSERVER-~A" name)
                   collect (intern (string name) '#:keyword)
                   collect (funcall (observer-name "JOIN-~A" name)
                                    (funcall reader first) (funcall reader second))))
      (or first second)))

(defgeneric observer-for (source &key role target loop)
  (:documentation "The OBSERVER, or nil, that SOURCE, what a user has given as :observer, is for one
channel or for one loop of a server. ROLE is :client or :server; TARGET what the channel was made
for, in canonical form; LOOP whose baton is held when the observer is told, nil within the image.")
  (:method (source &key &allow-other-keys)
    (misuse ":observer is what MAKE-OBSERVER or MAKE-METRICS returns, or a list of such, not ~S."
            source))
  (:method ((source null) &key &allow-other-keys) nil)
  (:method ((source observer) &key &allow-other-keys) source)
  (:method ((source cons) &rest options &key &allow-other-keys)
    (reduce #'join-observers source
            :key (lambda (source) (apply #'observer-for source options)))))

(defgeneric observer-interceptors (source)
  (:documentation "The interceptors of attempts, a list of functions, that SOURCE, what a user has
given a channel as :observer, needs.")
  (:method (source)
    (declare (ignore source))
    '())
  (:method ((source cons)) (mapcan (lambda (source) (copy-list (observer-interceptors source)))
                                   source)))

(defgeneric check-observer (source)
  (:documentation "Return SOURCE, or a list of the sources that it stands for, each once, for
OBSERVER-FOR; signal MISUSE if it is nothing for :observer.")
  (:method (source)
    (misuse ":observer is what MAKE-OBSERVER or MAKE-METRICS returns, or a list of such, not ~S."
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

(defmethod print-object ((observer observer) stream)
  (print-unreadable-object (observer stream :type t)
    (format stream "~{~(~A~)~^ ~}"
            (loop for row in *observations*
                  when (funcall (observer-name "OBSERVER-~A" (observation-name row)) observer)
                    collect (observation-name row)))))

(defmacro observe (name observer &rest arguments)
  "Tell OBSERVER, an observer or nil, the observation NAME. ARGUMENTS are evaluated only if OBSERVER
wants to know of it, or a tracer of NAME is on."
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
  "What observers are told, a list of lists of texts: name, arguments, meaning."
  (loop for row in *observations*
        collect (list (format nil "`:~(~A~)`" (observation-name row))
                      (format nil "`~(~A~)`" (observation-lambda-list row))
                      (substitute #\Space #\Newline (observation-text row)))))
