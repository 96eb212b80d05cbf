;;;; The keys. A server of the service NAME has the key NAME/ID, as in etcd's Go package; ID is its
;;;; address unless it has chosen another. That package takes all keys that begin with NAME for
;;;; servers, so the service config is elsewhere.

(in-package #:clgrpc.discovery)

(defconstant +longest-name+ 512 "So many characters a service's name has at most.")

(defun check-name (name)
  "Return NAME, that of a service: signal MISUSE if it is not one."
  (unless (and (stringp name)
               (<= 1 (length name) +longest-name+)
               (every (lambda (char) (char< #\Space char #\Rubout)) name)
               (char/= #\/ (char name 0))
               (char/= #\/ (char name (1- (length name)))))
    (misuse "The name of a service is ASCII without spaces, 1 to ~D characters, no slash at its ~
             ends; not ~S." +longest-name+ name))
  name)

(defun name-prefix (name)
  "The prefix of the keys of NAME's servers."
  (format nil "~A/" name))

(defun endpoint-key (name id)
  "Return the key of the server ID, a string, of the service NAME. Channels to etcd:///NAME expect a
value of ENDPOINT-TEXT there. From any thread."
  (concatenate 'string (name-prefix name) id))

(defun service-config-key (name)
  "The key of the service config of NAME, a string: the JSON that is put there comes into force in
the channels to etcd:///NAME. Signal MISUSE for a wrong name. From any thread."
  (format nil "clgrpc/service-config/~A" (check-name name)))
