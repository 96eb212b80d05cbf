;;;; Schemes of addresses that lead to no network, such as inproc: for calls within the image.
;;;; Whoever carries such calls registers the scheme. MAKE-CHANNEL and START-SERVER look here before
;;;; they take an address for one of the network's.

(in-package #:clgrpc.rpc)

(defstruct (scheme (:constructor make-scheme (name open listen)) (:copier nil))
  "What is done with addresses NAME:…"
  (name "" :type string :read-only t)
  (open nil :type function :read-only t)    ; (address arguments): a channel
  (listen nil :type function :read-only t)) ; (server address): channels to ADDRESS lead to SERVER

(defmethod print-object ((scheme scheme) stream)
  (print-unreadable-object (scheme stream :type t)
    (write-string (scheme-name scheme) stream)))

(defglobal **schemes** '())

(defun register-scheme (name &key open listen)
  "Have addresses that begin with NAME and a colon be for OPEN, a function (address arguments) that
returns a channel, ARGUMENTS being those of MAKE-CHANNEL, and LISTEN, a function (server address)
that has channels to ADDRESS lead to SERVER. One that was registered for NAME is replaced. Both
signal MISUSE for an address that means nothing. From any thread."
  (let ((scheme (make-scheme name open listen)))
    (sb-ext:atomic-update **schemes**
                          (lambda (schemes)
                            (cons scheme (remove name schemes :key #'scheme-name
                                                              :test #'string=))))
    (pushnew name loop:*other-schemes* :test #'string=)
    scheme))

(defun find-scheme (address)
  "The SCHEME registered for ADDRESS, or nil if that is for the network, or no address at all."
  (let ((colon (and (stringp address) (position #\: address))))
    (and colon
         (find-if (lambda (scheme)
                    (and (= colon (length (scheme-name scheme)))
                         (string-equal address (scheme-name scheme) :end1 colon)))
                  **schemes**))))
