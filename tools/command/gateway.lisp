;;;; `gateway`: all protocols of a server in front of any gRPC server. The types come from the
;;;; server's reflection, or from a .proto file or descriptor set, and are read again from time
;;;; to time. Methods whose types are not known can still be called by gRPC.

(in-package #:clgrpc.tools)

(defparameter *reflection-services*
  '("grpc.reflection.v1.ServerReflection" "grpc.reflection.v1alpha.ServerReflection")
  "Services that are forwarded unchanged, without their types.")

(defun reflected-pool (channel)
  "A pool of the descriptors that the server at CHANNEL gives by reflection."
  (let ((reflector (make-reflector :channel channel)))
    (ask-for-symbols reflector
                     (set-difference (ask-for-services reflector) *reflection-services*
                                     :test #'string=))))

(defun descriptor-file-pool (file import-paths)
  "A pool of FILE, a .proto file or a serialized descriptor set."
  (if (uiop:string-suffix-p file ".proto")
      (proto-pool file import-paths)
      (protoset-pool file)))

(defun gateway-pool (channel file import-paths)
  (if file (descriptor-file-pool file import-paths) (reflected-pool channel)))

(defun pool-octets (pool)
  "The octets of the files of POOL; two pools with equal octets have the same types."
  (mapcar #'protobuf:file-descriptor-octets (protobuf:type-pool-files pool)))

(defun renew-types (service pool known)
  "Set the methods of SERVICE to those of POOL, unless KNOWN, the octets that POOL-OCTETS returned
for its present methods, shows that it has them already. Return the POOL-OCTETS of POOL."
  (let ((octets (pool-octets pool)))
    (unless (equalp octets known)
      (setf (grpc:generic-service-methods service) (grpc:pool-methods pool :raw t))
      (log-event :info :gateway-types :methods (length (grpc:generic-service-methods service))))
    octets))

(defun renew-gateway (service channel file import-paths known)
  "Read the types again and call RENEW-TYPES with them. If the types cannot be read, log the reason
and change nothing."
  (handler-case (renew-types service (gateway-pool channel file import-paths) known)
    ((or failure grpc:rpc-error clgrpc-error) (error)
      (log-event :warning :gateway-types-unknown :reason (princ-to-string error))
      known)))

(defun first-types (service channel)
  "Call RENEW-TYPES with the types of the server of CHANNEL, before the log is open. If the server
does not report them, say so on standard error and return nil."
  (handler-case (renew-types service (reflected-pool channel) nil)
    ((or failure grpc:rpc-error clgrpc-error) (error)
      (format *error-output* "clgrpc gateway: no types yet, so only calls by gRPC are forwarded: ~
                              ~A~%" (printable-text (princ-to-string error)))
      nil)))

(defun call-with-gateway (function channel file import-paths seconds)
  "Call FUNCTION with a service that forwards calls to CHANNEL and reads the types again every
SECONDS. If FILE is not nil, signal a FAILURE if it cannot be read now."
  (let* ((service (grpc:make-gateway-service channel))
         (ended (sb-thread:make-semaphore))
         (known (if file
                    (renew-types service (descriptor-file-pool file import-paths) nil)
                    (first-types service channel)))
         (thread (sb-thread:make-thread
                  (lambda ()
                    (loop until (sb-thread:wait-on-semaphore ended :timeout seconds)
                          do (setf known (renew-gateway service channel file import-paths known))))
                  :name "clgrpc gateway")))
    (unwind-protect (funcall function service)
      (sb-thread:signal-semaphore ended)
      (sb-thread:join-thread thread :default nil))))

(define-command ("gateway" given)
    (((target "TARGET" #'parse-channel-target "The gRPC server that gets the calls."))
     ((types "FILE" #'identity nil
             "The .proto file, or the serialized descriptor set, that declares the services; by
      default the server's reflection is asked.")
      (import-path "DIR[:DIR…]" #'parse-directories nil
                   "The directories where the imports of --types are looked for first.")
      (renew "DURATION" #'parse-seconds 30
             "The interval at which the types are read again.")
      (behind-ca "FILE" #'identity nil
                 "Speak TLS with the server behind the gateway, and trust the certificates in FILE
      (PEM), or with `system` the system's.")
      (behind-cert "FILE" #'identity nil "The certificates to show that server if it asks for
      them.")
      (behind-key "FILE" #'identity nil
                  "The private key of --behind-cert; by default the key is in the same file.")
      (behind-name "NAME" #'identity nil
                   "The name that must be in the certificate of the server behind.")
      balancing-options
      :serving))
    "Speak gRPC, gRPC-Web, Connect and REST (google.api.http) in front of a gRPC server, and forward
all calls to it. REST and JSON need the types of its services. At SIGTERM or SIGINT lets running
calls end and exits with 0."
  (destructuring-bind (&key target types import-path renew behind-ca behind-cert behind-key
                         behind-name service-config balance &allow-other-keys)
      given
    (let ((channel (apply #'grpc:make-channel target
                          :credentials (client-credentials behind-ca behind-cert behind-key
                                                           behind-name :prefix "behind")
                          (balancing-arguments service-config balance))))
      (unwind-protect
           (call-with-gateway
            (lambda (service)
              (program:call-with-ending
               (lambda (ending)
                 (program:serve-as-asked (list service) (list* :web t given) ending '()))))
            channel types import-path renew)
        (grpc:close-channel channel))))
  0)
