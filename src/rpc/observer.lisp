;;;; Observers count or record what a server or a channel does: its calls, attempts, messages,
;;;; connections and refusals. An OBSERVER is a structure of functions, which the table below
;;;; declares. A server or channel has one or none; without one, each place that could tell costs a
;;;; load and a test. The tracers are one more observer, which every server and channel has; it is
;;;; called only while a tracer is on.
;;;;
;;;; An observer's functions are called where things happen: on the call's loop, with the baton
;;;; held. So they must be short, must not wait, and may only read the call. An error in one goes to
;;;; the log.

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
         ,@(loop for row in parsed
                 collect `(,(observation-name row) nil :type (or null function))))
       (declaim (sb-ext:freeze-type observer))
       (sb-ext:define-load-time-global **tracing-observer** (%make-observer))
       ,@(mapcar #'expand-teller parsed)
       (document-functions
         ,@(loop for row in parsed
                 collect (observer-name "OBSERVER-~A" (observation-name row))
                 collect (observation-text row))))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun expand-teller (row)
    "The function that tells the observation ROW."
    (let ((reader (observer-name "OBSERVER-~A" (observation-name row)))
          (arguments (observation-lambda-list row)))
      `(defun ,(observer-name "TELL-~A" (observation-name row)) (observer ,@arguments)
         ,(format nil "Tell OBSERVER, or nil, and the tracers if they are on: ~A"
                  (observation-text row))
         (flet ((tell (observer)
                  (let ((function (,reader observer)))
                    (when function
                      (loop:guarding (:observer-error)
                        (funcall (the function function) ,@arguments))))))
           ,@(when (observation-tracer row)
               `((when (tracing-p ,(observation-tracer row)) (tell **tracing-observer**))))
           (when observer (tell observer)))
         nil))))

(define-observations
    "Functions that are told what a server or a channel does, each nil or one of the table's rows."
  (call-begun (call) :call
    "CALL has begun, at this end.")
  (call-ended (call) :call
    "CALL has ended, at this end: CALL-STATUS says how, CALL-STAGES where its time went.")
  (attempt-begun (call peer stream) :call
    "An attempt of CALL, a client's, has a stream, which has the number STREAM, 0 within the image,
and leads to PEER, an address.")
  (attempt-ended (call peer status) nil
    "The stream of an attempt of CALL, a client's, to PEER is over: STATUS is that of the attempt,
:cancelled if another has the call, that of CALL if it has ended with this one.")
  (headers-sent (call) nil
    "CALL's headers have been written.")
  (headers-received (call) nil
    "The headers of CALL's peer have come.")
  (message-sent (call octets) nil
    "A message of CALL has been written that takes OCTETS on the wire, without its prefix; of a
client's call in each of its attempts.")
  (message-received (call octets) nil
    "A message for CALL has come that took OCTETS on the wire, without its prefix.")
  (connection-begun (peer) nil
    "A connection with PEER, an address, has been made.")
  (connection-ended (peer reason) nil
    "The connection with PEER has ended because of REASON, a text.")
  (refused (option peer) nil
    "A call or connection of PEER was refused or ended because of OPTION, a keyword of the options
table."))

(defun make-observer (&rest functions)
  "Return an observer, for :observer of START-SERVER, MAKE-CHANNEL or SERVER-CHANNEL. FUNCTIONS is a
plist from the name of an observation to a function:
:call-begun and :call-ended (call); :attempt-begun (call peer stream) and :attempt-ended (call peer
status), of clients' calls; :headers-sent and :headers-received (call); :message-sent and
:message-received (call octets); :connection-begun (peer) and :connection-ended (peer reason);
:refused (option peer), of servers. PEER is an address, a string or nil. The functions are called on
the loop or, for calls within the image, on the thread that makes or handles the call. They must not
wait; an error in one goes to the log. Signal MISUSE for any other name, and for a value that is
neither a function nor nil. From any thread."
  (loop for (name function) on functions by #'cddr
        do (unless (find name *observations* :key #'observation-name :test #'string=)
             (misuse "Observers are not told ~S, but~{ ~(~S~)~^,~}." name
                     (mapcar #'observation-name *observations*)))
           (unless (typep function '(or null function))
             (misuse "What ~S is told to is a function, not ~S." name function)))
  (apply #'%make-observer functions))

(defun check-observer (observer)
  "Return OBSERVER, an OBSERVER or nil; signal MISUSE if it is neither."
  (unless (typep observer '(or null observer))
    (misuse ":observer is what MAKE-OBSERVER returns, not ~S." observer))
  observer)

(defmethod print-object ((observer observer) stream)
  (print-unreadable-object (observer stream :type t)
    (format stream "~{~(~A~)~^ ~}"
            (loop for row in *observations*
                  when (funcall (observer-name "OBSERVER-~A" (observation-name row)) observer)
                    collect (observation-name row)))))

(defmacro observe (name observer &rest arguments)
  "Tell OBSERVER, an observer or nil, the observation NAME. ARGUMENTS are evaluated only if OBSERVER
is not nil or a tracer of NAME is on."
  (let* ((row (find-observation name))
         (variable (gensym "OBSERVER"))
         (tracer (observation-tracer row)))
    (unless (= (length arguments) (length (observation-lambda-list row)))
      (error "The observation ~S takes ~S." name (observation-lambda-list row)))
    `(let ((,variable ,observer))
       (when ,(if tracer `(or ,variable (tracing-p ,tracer)) variable)
         (,(observer-name "TELL-~A" name) ,variable ,@arguments)))))

(defun observation-table ()
  "What observers are told, a list of lists of texts: name, arguments, meaning."
  (loop for row in *observations*
        collect (list (format nil "`:~(~A~)`" (observation-name row))
                      (format nil "`~(~A~)`" (observation-lambda-list row))
                      (substitute #\Space #\Newline (observation-text row)))))
