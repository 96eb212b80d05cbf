;;;; Codecs: encodings of messages other than Protocol Buffers. The name of a codec is the content
;;;; subtype of gRPC over HTTP/2: application/grpc+NAME. A codec belongs to a method, by
;;;; GENERIC-METHOD, or to a channel; a server uses the codec that a request names. In each case
;;;; this makes a METHOD-IN-CODEC (method/coded-method.lisp).

(in-package #:clgrpc.encoding)

(defstruct (message-codec (:conc-name codec-) (:copier nil))
  "An encoding of messages as octets."
  (name "" :type simple-string :read-only t) ; the content subtype
  (serialize nil :type function)        ; a function of (message type) that returns octets
  (deserialize nil :type function)      ; a function of (octets type) that returns a message
  (field nil))                          ; the header content-type, once the wire has made it

(declaim (sb-ext:freeze-type message-codec))

(document-functions
  codec-name "The content subtype of CODEC, a string."
  codec-field "The header content-type of CODEC, once the wire has made it.")

(define-printer (codec message-codec)
  "~A" (codec-name codec))

(defglobal **codecs** (make-hash-table :test 'equalp :synchronized t)) ; by name

(defconstant +codec-characters+ 32 "The maximum length of a codec's name, in characters.")

(defun codec-name-p (name)
  "True if NAME may be the name of a codec."
  (and (stringp name)
       (<= 1 (length name) +codec-characters+)
       (every (lambda (character)
                (or (char<= #\a character #\z) (digit-char-p character)
                    (find character "-_.")))
              name)))

(defun check-codec-name (name)
  "Return NAME if it is a valid name of a codec; otherwise signal MISUSE."
  (unless (codec-name-p name)
    (misuse "~S cannot be the name of a codec, which has at most ~D small letters, digits and ~
             \"-_.\"." name
            +codec-characters+))
  (when (string= "proto" name) (misuse "The codec \"proto\" is built in; register another name."))
  (coerce name 'simple-string))

(define-keyword-function register-codec (name &key serialize deserialize)
  "Register the codec NAME, a content subtype in small letters such as \"json\": from now on
GENERIC-METHOD and :CODEC of channels accept it, and servers serve requests with the content type
application/grpc+NAME. The messages are encoded by the codec instead of Protocol Buffers. Return
NAME.
SERIALIZE    a function of a message and its type that returns octets
DESERIALIZE  a function of octets and a type that returns a message, which must not be nil; if it
             signals an error the call ends with :internal
The type is a symbol such as HELLOWORLD:HELLO-REQUEST, or a message type; nil for a method without
types, whose messages may be any objects. The octets are those of a whole message, at most
:max-receive-octets; no option limits the memory that DESERIALIZE allocates for a message. Both
functions are called on the threads of handlers and callers, several calls at a time. Registering
NAME again replaces its functions. Channels within the image do not use codecs. Signal MISUSE for an
invalid name, and for \"proto\". From any thread."
  (let ((name (check-codec-name name)))
    (unless (and (functionp serialize) (functionp deserialize))
      (misuse "The codec ~S needs two functions, :serialize and :deserialize." name))
    (sb-ext:with-locked-hash-table (**codecs**)
      (let ((codec (gethash name **codecs**)))
        (if codec
            (setf (codec-serialize codec) serialize
                  (codec-deserialize codec) deserialize)
            (setf (gethash name **codecs**)
                  (make-message-codec :name name :serialize serialize :deserialize deserialize)))))
    name))

(defun find-codec (name)
  "The codec that is registered as NAME, a string in upper or lower case; nil if no codec has this
name. If the value is nil, a second value is true if NAME could be registered later. From any
thread."
  (or (gethash name **codecs**)
      (values nil (codec-name-p (string-downcase name)))))

(defun codec-of-name (name)
  "The codec that is registered as NAME; nil for nil and for \"proto\". Signal MISUSE for an unknown
name."
  (cond ((or (null name) (equal "proto" name)) nil)
        ((and (stringp name) (find-codec name)))
        (t (misuse "No codec is registered as ~S; REGISTER-CODEC registers a codec." name))))

(defun type-in-codec (type codec)
  "The coded type for messages of TYPE, a message type, in CODEC."
  (let ((designator (if (protobuf:raw-type-p type)
                        nil
                        (or (protobuf:message-type-symbol type) type))))
    (protobuf:make-coded-type
     (format nil "~A in ~A" (protobuf:message-type-name type) (codec-name codec))
     (lambda (message) (funcall (codec-serialize codec) message designator))
     (lambda (octets) (funcall (codec-deserialize codec) octets designator)))))
