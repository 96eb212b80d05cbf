;;;; The registry of schemes: the meanings of addresses that begin with NAME and a colon. A row has
;;;; up to four functions, one for each place where addresses are read. The layer that implements a
;;;; function registers it; a scheme can be added, or a function of a scheme replaced, at any time.
;;;;
;;;;   parse     a socket address of the kernel's, to connect to or to listen on (target.lisp)
;;;;   resolver  MAKE-CHANNEL: the servers of a channel over the network
;;;;             (src/client/naming/resolver.lisp)
;;;;   open      MAKE-CHANNEL: a channel of another kind, such as one within the image
;;;;   listen    START-SERVER: how calls of such a channel reach a server

(in-package #:clgrpc.loop)

(defstruct (scheme (:copier nil))
  "The functions for addresses that begin with NAME and a colon."
  (name "" :type string :read-only t)   ; the scheme in lower case
  (parse nil :type (or null function) :read-only t) ; the table above explains each
  (resolver nil :type (or null function) :read-only t) ; likewise
  (open nil :type (or null function) :read-only t) ; likewise
  (listen nil :type (or null function) :read-only t)) ; likewise

(declaim (sb-ext:freeze-type scheme))

(document-functions
  scheme-name "The name of SCHEME, in lower case."
  scheme-resolver "See REGISTER-SCHEME."
  scheme-open "See REGISTER-SCHEME."
  scheme-listen "See REGISTER-SCHEME.")

(defmethod print-object ((scheme scheme) stream)
  (print-unreadable-object (scheme stream :type t)
    (write-string (scheme-name scheme) stream)))

(defglobal **schemes** '())

(defun register-scheme (name &rest functions &key parse resolver open listen)
  "Register functions that define the meaning of addresses that begin with NAME and a colon: PARSE
(text path smallest-port) returns the TARGET, a socket, for TEXT; PATH follows the colon, or the
empty authority \"//\"; ports below SMALLEST-PORT are invalid.
RESOLVER (text) returns the resolver that finds the servers of a channel to TEXT.
OPEN (text arguments) returns a channel to TEXT; ARGUMENTS are those of MAKE-CHANNEL.
LISTEN (server text) registers SERVER under TEXT: channels that OPEN returns for TEXT then call
SERVER.
Each function signals MISUSE for a text that it cannot use. If a function is not given, the function
that was registered before remains. Return the scheme. From any thread."
  (declare (ignore parse resolver open listen))
  (let ((new nil))
    (flet ((with-scheme (schemes)
             (let ((old (find name schemes :key #'scheme-name :test #'string-equal)))
               (setf new (apply #'make-scheme :name (string-downcase name)
                                (append functions
                                        (when old
                                          (list :parse (scheme-parse old)
                                                :resolver (scheme-resolver old)
                                                :open (scheme-open old)
                                                :listen (scheme-listen old))))))
               (if old (substitute new old schemes) (append schemes (list new))))))
      (sb-ext:atomic-update **schemes** #'with-scheme))
    new))

(defun find-scheme (text)
  "Return the scheme of TEXT, or nil if TEXT is not a string or the part before its first colon is
not the name of a scheme."
  (let ((colon (and (stringp text) (position #\: text))))
    (and colon
         (find-if (lambda (scheme)
                    (and (= colon (length (scheme-name scheme)))
                         (string-equal text (scheme-name scheme) :end1 colon)))
                  **schemes**))))

(defun scheme-names ()
  "The names of all schemes, in the order in which they were registered."
  (mapcar #'scheme-name **schemes**))
