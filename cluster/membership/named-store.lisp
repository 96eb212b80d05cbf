;;;; Stores by name.

(in-package #:clgrpc.cluster)

(defun open-memory (options)
  "Return a client of a new engine in memory. Closing the client ends the engine. OPTIONS are as for
OPEN-STORE."
  (let* ((engine (memory:make-engine))
         (store (apply #'memory:connect engine options)))
    (etcd:add-ending store (lambda () (memory:close-engine engine)))
    store))

(defun open-store (name &rest options)
  "Return a client of the store NAME: \"etcd:HOST:PORT\", with several members separated by commas,
\"etcd:10.0.0.1:2379,10.0.0.2:2379\"; or \"memory\", a store within this process, which ends with
the client. OPTIONS are as for MAKE-ETCD: :timeout, :credentials and so on; for \"memory\" only
:timeout. Connects nothing yet. Signal MISUSE for another name. From any thread; end it with
CLOSE-ETCD."
  (let ((prefix "etcd:"))
    (cond ((equal "memory" name) (open-memory options))
          ((and (stringp name) (uiop:string-prefix-p prefix name)
                (< (length prefix) (length name)))
           (apply #'etcd:make-etcd
                  (uiop:split-string (subseq name (length prefix)) :separator ",")
                  options))
          (t (misuse "A store is \"etcd:HOST:PORT\" or \"memory\", not ~S." name)))))
